// One card per indicator: name, figure, its counters, and how it went over the window.

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
      const spark = sparkline()
      node.append(h("div", "label", card.label), figure, sub, spark.svg)
      return { node, value, unit, sub, spark }
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
      node.spark.show(card)
    })
  })
  return root
}
