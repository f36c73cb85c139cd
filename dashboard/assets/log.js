// What happened, rarely enough to be told in words; newest first.

export function render({ model }) {
  const root = h("div", "panel")
  const head = h("div", "head")
  head.append(h("h3", "", "Events"), h("span", "unit", "newest first"))
  const list = h("ol"), empty = h("div", "empty")
  root.append(head, list, empty)
  const update = () => {
    list.replaceChildren(...model.rows.map((row) => {
      const item = h("li")
      item.dataset.kind = row.kind
      const text = h("span", "text", row.text)
      item.append(h("time", "", clock(row.t)), h("b", "", row.label), text)
      item.title = `${row.text}\nstep ${row.step.toLocaleString("en")}`
      return item
    }))
    empty.textContent = model.empty
    empty.hidden = !model.empty
  }
  model.on(["rows", "empty"], update)
  update()
  return root
}

function clock(t) {
  const d = new Date(t * 1000), p = (v) => String(v).padStart(2, "0")
  return `${p(d.getHours())}:${p(d.getMinutes())}:${p(d.getSeconds())}`
}
function h(tag, name, text) {
  const node = document.createElement(tag)
  if (name) node.className = name
  if (text !== undefined) node.textContent = text
  return node
}
