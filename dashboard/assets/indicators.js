// One card per indicator: name, figure, its counters, and how it went over the window.

const W = 120, H = 30

export function render({ model }) {
  const root = h("div", "figures")
  let cards = []
  const build = (shown) => {
    cards = shown.map((card) => {
      const node = h("div", "card")
      node.dataset.key = card.key
      const figure = h("div", "figure")
      const value = h("span", "value"), unit = h("span", "unit")
      figure.append(value, unit)
      const sub = h("div", "sub")
      const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none" })
      const area = s("path", { "fill-opacity": .22, stroke: "none" })
      const line = s("path", { fill: "none", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke", "stroke-linejoin": "round" })
      const base = s("path", { fill: "none", stroke: "currentColor", "stroke-width": 1, "stroke-dasharray": "4 3", "vector-effect": "non-scaling-stroke", opacity: .7 })
      svg.append(area, line, base)
      node.append(h("div", "label", card.label), figure, sub, svg)
      return { node, value, unit, sub, area, line, base }
    })
    root.replaceChildren(...cards.map((card) => card.node))
  }
  follow(model, (state) => {
    const shown = state.cards || []
    if (cards.length !== shown.length) build(shown)
    shown.forEach((card, index) => {
      const node = cards[index]
      put(node.value, card.value)
      put(node.unit, card.unit)
      put(node.sub, card.sub)
      if (node.node.title !== card.tip) node.node.title = card.tip
      node.node.classList.toggle("unknown", card.value === "–")
      node.line.setAttribute("stroke", card.color)
      node.area.setAttribute("fill", card.color)
      const top = Math.max(card.top || 0, ...card.spark.filter((v) => v != null), 1e-9)
      const [line, area] = trace(card.spark, top)
      node.line.setAttribute("d", line)
      node.area.setAttribute("d", area)
      const at = card.base == null ? null : y(card.base, top)
      node.base.setAttribute("d", at == null ? "" : `M0 ${at}H${W}`)
    })
  })
  return root
}

function y(value, top) { return (H - 1.5 - (H - 4) * Math.min(value / top, 1)).toFixed(2) }

function trace(values, top) {
  const step = W / Math.max(values.length - 1, 1)
  let line = "", area = "", open = null
  values.forEach((value, index) => {
    const x = (index * step).toFixed(2)
    if (value == null) {
      if (open != null) area += `V${H}H${open}Z`
      open = null
      return
    }
    if (open == null) { line += `M${x} ${y(value, top)}`; area += `M${x} ${H}V${y(value, top)}`; open = x }
    else { line += `L${x} ${y(value, top)}`; area += `L${x} ${y(value, top)}` }
  })
  if (open != null) area += `V${H}H${open}Z`
  return [line, area]
}

function s(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag)
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value)
  return node
}
