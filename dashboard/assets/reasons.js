// Why look-ups ended: one line per reason, as long as its share of the look-ups.

export function render({ model }) {
  const root = h("div", "panel")
  const head = h("div", "head")
  head.append(h("h3", "", "Why look-ups ended"), h("span", "unit", "share of look-ups"))
  const list = h("div", "list"), note = h("div", "empty")
  root.append(head, list, note)
  let lines = []
  const build = (rows) => {
    lines = rows.map((row) => {
      const node = h("div", row.group ? "line first" : "line")
      if (row.group) list.append(h("div", "group", row.group))
      node.title = row.tip
      const fill = h("i", row.look || "")
      fill.style.setProperty("--c", row.color)
      const track = h("div", "track")
      track.append(fill)
      const share = h("b"), count = h("span", "count")
      node.append(h("span", "label", row.label), track, share, count)
      list.append(node)
      return { fill, share, count, node }
    })
  }
  follow(model, (state) => {
    const rows = state.rows || []
    if (lines.length !== rows.length) { list.replaceChildren(); build(rows) }
    rows.forEach((row, index) => {
      const line = lines[index]
      line.fill.style.width = `${(100 * row.part).toFixed(2)}%`
      put(line.share, row.share)
      put(line.count, row.count)
      line.node.title = row.tip
      line.node.classList.toggle("none", row.part === 0)
    })
    put(note, state.empty || "")
    note.hidden = !state.empty
    list.classList.toggle("unknown", Boolean(state.empty))
  })
  return root
}
