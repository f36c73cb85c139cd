// Engines side by side, a page of them. Their names are text from outside: set as text only.

export function render({ model }) {
  const root = h("div", "panel")
  const head = h("div", "head")
  const what = h("span", "unit"), all = button("all", "Add up all", "Tick every engine", () => model.send_msg({ all: true }))
  head.append(h("h3", "", "Engines side by side"), what, h("span", "spacer"), all)
  const table = h("table"), thead = h("thead"), body = h("tbody")
  table.append(thead, body)
  const scroll = h("div", "scroll")
  scroll.append(table)
  const foot = h("div", "foot")
  const count = h("span", "count")
  const earlier = button("", "‹ before", "", () => model.send_msg({ page: state.page - 1 }))
  const later = button("", "next ›", "", () => model.send_msg({ page: state.page + 1 }))
  foot.append(count, h("span", "spacer"), earlier, later)
  root.append(head, scroll, foot)

  let state = { rows: [], columns: [], page: 0 }, lines = [], titles = ""

  const headings = () => {
    const now = JSON.stringify([state.columns, state.sort, state.down])
    if (now === titles) return
    titles = now
    const row = h("tr")
    const heading = (key, label, name) => {
      const cell = h("th", name)
      const mark = state.sort === key ? (state.down ? " ▾" : " ▴") : ""
      cell.append(button("sort", label + mark, `Sort by ${label.toLowerCase()}`, () => model.send_msg({ sort: key })))
      if (mark) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending")
      row.append(cell)
    }
    const sum = h("th", "sum", "Σ")
    sum.title = "Ticked engines are added up in the figures and plots of the page"
    row.append(sum)
    heading("name", "Engine", "who")
    heading("state", "State", "")
    for (const { key, label } of state.columns) heading(key, label, "figure")
    thead.replaceChildren(row)
  }

  const build = () => {
    lines = state.rows.map(() => {
      const tr = h("tr")
      const tick = h("input")
      tick.type = "checkbox"
      const name = button("name", "", "Look at this engine alone")
      const pill = h("span", "mark"), word = h("span", "said")
      pill.append(h("i"), word)
      const line = { tr, tick, name, pill, word, row: {} }
      tick.addEventListener("change", () => model.send_msg({ tick: line.row.name }))
      name.addEventListener("click", () => model.send_msg({ look: line.row.name }))
      const cells = [h("td", "sum"), h("td", "who"), h("td")]
      cells[0].append(tick)
      cells[1].append(name)
      cells[2].append(pill)
      line.figures = state.columns.map(() => {
        const cell = h("td", "figure"), value = h("b"), unit = h("span", "unit"), spark = sparkline()
        const number = h("div", "number")
        number.append(value, unit)
        cell.append(number, spark.svg)
        cells.push(cell)
        return { cell, value, unit, spark }
      })
      tr.append(...cells)
      return line
    })
    body.replaceChildren(...lines.map((line) => line.tr))
  }

  follow(model, (now) => {
    const before = state
    state = { rows: [], columns: [], page: 0, ...now }
    headings()
    if (lines.length !== state.rows.length || before.columns.length !== state.columns.length) build()
    state.rows.forEach((row, index) => {
      const line = lines[index]
      line.row = row
      line.tick.checked = row.on
      line.tick.setAttribute("aria-label", `Add up ${row.label}`)
      put(line.name, row.label)
      line.name.title = `Look at ${row.label} alone`
      line.pill.dataset.state = row.state
      put(line.word, row.word)
      line.pill.title = row.more
      line.tr.classList.toggle("off", !row.on)
      row.figures.forEach((card, at) => {
        const figure = line.figures[at]
        put(figure.value, card.value)
        put(figure.unit, card.unit)
        figure.cell.title = `${card.sub}\n${card.tip}`
        figure.spark.show(card)
      })
    })
    put(what, state.some ? `the page adds up ${state.ticked}, those ticked` : `the page adds up all ${state.rows.length ? state.ticked.split(" ")[0] : ""}; a column has one scale`)
    all.hidden = !state.some
    put(count, state.count || "")
    earlier.disabled = state.page === 0
    later.disabled = !state.older
    foot.hidden = !state.older && state.page === 0
  })
  return root
}
