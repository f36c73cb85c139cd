// What every part of the page uses. Text from outside is only ever set as text.
function h(tag, name, text) {
  const node = document.createElement(tag)
  if (name) node.className = name
  if (text !== undefined) node.textContent = text
  return node
}
function button(name, text, title, act) {
  const node = h("button", name, text)
  node.type = "button"
  if (title) node.title = title
  if (act) node.addEventListener("click", act)
  return node
}
function put(node, text) { if (node.textContent !== text) node.textContent = text }
function clock(t, tenths) {
  const d = new Date(t * 1000), p = (v) => String(v).padStart(2, "0")
  const text = `${p(d.getHours())}:${p(d.getMinutes())}:${p(d.getSeconds())}`
  return tenths ? `${text}.${Math.floor(d.getMilliseconds() / 100)}` : text
}
// Calls back with what is shown, now and whenever it changes.
function follow(model, draw) {
  const update = () => draw(JSON.parse(model.state))
  model.on("state", update)
  update()
}
