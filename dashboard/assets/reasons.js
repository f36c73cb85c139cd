// Why look-ups ended: one line per reason, as long as its share of the look-ups.

export function render({ model }) {
  const root = h("div", "panel")
  const head = h("div", "head")
  head.append(h("h3", "", model.title), h("span", "unit", "share of look-ups"))
  const list = h("div", "list"), note = h("div", "empty")
  root.append(head, list, note)
  let lines = []
  const build = () => {
    lines = model.rows.map((row) => {
      const node = h("div", row.group ? "line first" : "line")
      if (row.group) list.append(h("div", "group", row.group))
      node.title = row.tip
      const fill = h("i", row.look || "")
      fill.style.setProperty("--c", row.color)
      const track = h("div", "track")
      track.append(fill)
      const share = h("b"), count = h("span", "count")
      node.append(h("span", "label", row.label), share, track, count)
      list.append(node)
      return { fill, share, count, node }
    })
  }
  const update = () => {
    if (lines.length !== model.rows.length) { list.replaceChildren(); build() }
    model.rows.forEach((row, index) => {
      const line = lines[index]
      line.fill.style.width = `${(100 * row.part).toFixed(2)}%`
      line.share.textContent = row.share
      line.count.textContent = row.count
      line.node.classList.toggle("none", row.part === 0)
    })
    note.textContent = model.empty
    note.hidden = !model.empty
    list.classList.toggle("unknown", Boolean(model.empty))
  }
  model.on(["rows", "empty"], update)
  update()
  return root
}

function h(tag, name, text) {
  const node = document.createElement(tag)
  if (name) node.className = name
  if (text !== undefined) node.textContent = text
  return node
}
