// Head of a plot's card: title, explanation, legend with the newest values, a choice of
// units, and the note that says what would fill an empty plot. All text is set as text.

export function render({ model, el }) {
  const root = h("div", "head")
  const row = h("div", "row")
  const title = h("h3")
  const unit = h("span", "unit")
  const options = h("span", "options")
  const ask = h("button", "ask", "?")
  ask.type = "button"
  ask.setAttribute("aria-label", "What is this?")
  row.append(title, unit, h("span", "spacer"), options, ask)
  const chips = h("div", "chips")
  const note = h("div", "note")
  root.append(row, chips, note)

  const tip = h("div", "tip")
  tip.popover = "manual"
  root.append(tip)
  const show = () => {
    tip.replaceChildren(...model.help.map(([kind, text]) => h("p", kind, text)))
    tip.showPopover()
    const at = ask.getBoundingClientRect()
    const width = tip.offsetWidth
    tip.style.left = `${Math.max(8, Math.min(at.right - width, innerWidth - width - 8))}px`
    tip.style.top = `${at.bottom + 6}px`
  }
  const hide = () => { if (tip.matches(":popover-open")) tip.hidePopover() }
  for (const name of ["mouseenter", "focus"]) ask.addEventListener(name, show)
  for (const name of ["mouseleave", "blur"]) ask.addEventListener(name, hide)

  let values = new Map()
  const legend = () => {
    values = new Map()
    chips.replaceChildren(...model.chips.map((chip) => {
      const button = h("button", "chip")
      button.type = "button"
      button.title = chip.tip || ""
      const shown = !model.hidden.includes(chip.key)
      button.setAttribute("aria-pressed", shown)
      const swatch = h("i", chip.look || "")
      swatch.style.setProperty("--c", chip.color)
      const value = h("b", "", model.values[chip.key] ?? "")
      values.set(chip.key, value)
      button.append(swatch, h("span", "", chip.label), value)
      button.addEventListener("click", () => {
        const rest = model.hidden.filter((key) => key !== chip.key)
        model.hidden = rest.length < model.hidden.length ? rest : [...rest, chip.key]
      })
      return button
    }))
  }
  const choices = () => {
    options.replaceChildren(...model.options.map((name) => {
      const button = h("button", "", name)
      button.type = "button"
      button.setAttribute("aria-pressed", name === model.option)
      button.addEventListener("click", () => { model.option = name })
      return button
    }))
  }
  const heading = () => { title.textContent = model.title; unit.textContent = model.unit }
  const noting = () => { note.replaceChildren(h("span", "", model.note)); note.hidden = !model.note }

  model.on(["title", "unit"], heading)
  model.on(["chips", "hidden"], legend)
  model.on("values", () => {
    for (const [key, node] of values) node.textContent = model.values[key] ?? ""
  })
  model.on(["options", "option"], choices)
  model.on("note", noting)
  model.on("remove", hide)
  note.style.height = `${model.note_height}px`
  heading(); legend(); choices(); noting()
  return root
}

function h(tag, name, text) {
  const node = document.createElement(tag)
  if (name) node.className = name
  if (text !== undefined) node.textContent = text
  return node
}
