// What happened, rarely enough to be told in words; newest first.

export function render({ model }) {
  const root = h("div", "panel")
  const head = h("div", "head")
  head.append(h("h3", "", "Events"), h("span", "unit", "newest first"))
  const list = h("ol"), empty = h("div", "empty")
  root.append(head, list, empty)
  follow(model, (state) => {
    list.replaceChildren(...(state.rows || []).map((row) => {
      const item = h("li")
      item.dataset.kind = row.kind
      item.append(h("time", "", clock(row.t)), h("b", "", row.label), h("span", "text", row.text))
      item.title = `${row.text}\nstep ${row.step.toLocaleString("en")}`
      return item
    }))
    put(empty, state.empty || "")
    empty.hidden = !state.empty
  })
  return root
}
