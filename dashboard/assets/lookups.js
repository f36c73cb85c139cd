// The newest look-ups, a page of them at a time. Rows are text from outside: they are set
// as text, never as markup. While the pointer rests on the table it stands still.

const PARTS = [["local", "--ac-local"], ["external", "--ac-loading"], ["refused", "--ac-refused"], ["unused", "--ac-retained"], ["missed", "--ac-computed"]]

export function render({ model }) {
  const root = h("div", "panel")
  const head = h("div", "head")
  const filter = h("input", "ac-filter")
  filter.type = "search"
  filter.placeholder = "Filter by request id   /"
  filter.setAttribute("aria-label", "Filter by request id")
  filter.spellcheck = false
  let typing
  filter.addEventListener("input", () => {
    clearTimeout(typing)
    typing = setTimeout(() => model.send_msg({ filter: filter.value }), 200)
  })
  const reason = h("select")
  reason.setAttribute("aria-label", "Why it ended")
  for (const [label, value] of JSON.parse(model.fixed).reasons) reason.append(new Option(label, value))
  reason.addEventListener("change", () => model.send_msg({ reason: reason.value }))
  const held = h("span", "held")
  head.append(h("h3", "", "Look-ups"), h("span", "unit", "one admission per row, newest first"), h("span", "spacer"), held, reason, filter)

  const table = h("table")
  const titles = h("tr")
  for (const [label, name, tip] of [
    ["Time", "", "When it was admitted"], ["Engine", "who", "Whose look-up it is"], ["Request", "", ""], ["Tokens", "num", "Tokens of the request when it was looked up"],
    ["Where they came from", "", "Blue: local hit. Purple: external. Orange: refused. Green: rows only. Grey: computed"],
    ["Hit", "num", "Tokens that were not computed: local and external"], ["Hits ended at", "num ran", "Tokens of the leading run of blocks with R3 rows"],
    ["Why they ended", "", "Why the run of hits did not go further"], ["External offer", "", "What the KV connector offered and what became of it"],
  ]) {
    const cell = h("th", name, label)
    cell.title = tip
    titles.append(cell)
  }
  const thead = h("thead"), body = h("tbody")
  thead.append(titles)
  table.append(thead, body)
  const scroll = h("div", "scroll")
  scroll.append(table)
  const empty = h("div", "empty")
  const foot = h("div", "foot")
  const count = h("span", "count")
  const newer = h("button", "", "‹ newer"), older = h("button", "", "older ›")
  for (const [node, by] of [[newer, -1], [older, 1]]) {
    node.type = "button"
    node.addEventListener("click", () => model.send_msg({ page: Math.max(0, state.page + by) }))
  }
  foot.append(count, h("span", "spacer"), newer, older)
  root.append(head, scroll, empty, foot)

  let resting = false, missed = false, selected = "", state = { rows: [], page: 0 }
  scroll.addEventListener("mouseenter", () => { resting = true })
  scroll.addEventListener("mouseleave", () => { resting = false; if (missed) fill() })

  const fill = () => {
    missed = false
    held.textContent = ""
    body.replaceChildren(...state.rows.flatMap(line))
    put(empty, state.empty)
    empty.hidden = !state.empty
    table.hidden = Boolean(state.empty)
  }
  const line = (row) => {
    const tr = h("tr", row.key === selected ? "on" : "")
    tr.tabIndex = 0
    const bar = h("div", "bar")
    for (const [part, color] of PARTS) {
      if (!row[part]) continue
      const piece = h("i", part)
      piece.style.flexGrow = row[part]
      piece.style.background = `var(${color})`
      bar.append(piece)
    }
    const cell = h("td", "wide")
    cell.append(bar)
    cell.title = row.parts
    const id = h("td", "id", row.request)
    id.title = row.request
    const why = h("td", `why ${row.reason}`, row.why)
    why.title = row.why_long
    const offer = h("td", "offer", row.offer)
    offer.title = row.offer
    const who = h("td", "who", row.engine)
    who.title = row.engine
    tr.append(h("td", "time", clock(row.t, true)), who, id, h("td", "num", n(row.tokens)), cell, h("td", "num", row.hit), h("td", "num ran", n(row.run_end)), why, offer)
    const pick = () => { selected = selected === row.key ? "" : row.key; fill() }
    tr.addEventListener("click", pick)
    tr.addEventListener("keydown", (event) => { if (event.key === "Enter") pick() })
    if (row.key !== selected) return [tr]
    const more = h("tr", "detail"), wide = h("td")
    wide.colSpan = 9
    wide.append(...row.detail.map((text) => h("p", "", text)))
    more.append(wide)
    return [tr, more]
  }
  follow(model, (now) => {
    const same = now.page === state.page && now.asked === state.asked
    state = { rows: [], page: 0, empty: "", ...now }
    table.classList.toggle("one", !state.several)
    put(count, state.count || "")
    newer.disabled = state.page === 0
    older.disabled = !state.older
    if (resting && same && state.rows.length && body.childElementCount) {
      missed = true
      held.textContent = "holding still under the pointer"
    } else fill()
  })
  return root
}

function n(value) { return value.toLocaleString("en") }
