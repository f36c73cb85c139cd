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
function s(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag)
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value)
  return node
}
// A small figure without axes: `show` takes spark (null is a gap), color, top and base.
function sparkline() {
  const W = 120, H = 30
  const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none" })
  const area = s("path", { "fill-opacity": .22, stroke: "none" })
  const line = s("path", { fill: "none", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke", "stroke-linejoin": "round" })
  const base = s("path", { fill: "none", stroke: "currentColor", "stroke-width": 1, "stroke-dasharray": "4 3", "vector-effect": "non-scaling-stroke", opacity: .7 })
  svg.append(area, line, base)
  const show = ({ spark, color, top, base: level }) => {
    const highest = Math.max(top || 0, ...spark.filter((v) => v != null), 1e-9)
    const y = (value) => (H - 1.5 - (H - 4) * Math.min(value / highest, 1)).toFixed(2)
    const step = W / Math.max(spark.length - 1, 1)
    let path = "", below = "", open = null
    spark.forEach((value, index) => {
      const x = (index * step).toFixed(2)
      if (value == null) {
        if (open != null) below += `V${H}H${open}Z`
        open = null
        return
      }
      path += `${open == null ? "M" : "L"}${x} ${y(value)}`
      below += open == null ? `M${x} ${H}V${y(value)}` : `L${x} ${y(value)}`
      if (open == null) open = x
    })
    if (open != null) below += `V${H}H${open}Z`
    line.setAttribute("stroke", color)
    area.setAttribute("fill", color)
    line.setAttribute("d", path)
    area.setAttribute("d", below)
    base.setAttribute("d", level == null ? "" : `M0 ${y(level)}H${W}`)
  }
  return { svg, show }
}
