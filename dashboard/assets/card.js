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

  const fixed = JSON.parse(model.fixed)
  let hidden = [], option = fixed.options[0] || "", state = {}
  put(title, fixed.title)
  put(unit, fixed.unit)
  const tip = h("div", "tip")
  tip.popover = "manual"
  root.append(tip)
  const show = () => {
    tip.replaceChildren(...fixed.help.map(([kind, text]) => h("p", kind, text)))
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
    chips.replaceChildren(...fixed.chips.map((chip) => {
      const button = h("button", "chip")
      button.type = "button"
      button.title = chip.tip || ""
      const shown = !hidden.includes(chip.key)
      button.setAttribute("aria-pressed", shown)
      const swatch = h("i", chip.look || "")
      swatch.style.setProperty("--c", chip.color)
      const value = h("b", "", state.values?.[chip.key] ?? "")
      values.set(chip.key, value)
      button.append(swatch, h("span", "", chip.label), value)
      button.addEventListener("click", () => {
        const rest = hidden.filter((key) => key !== chip.key)
        hidden = rest.length < hidden.length ? rest : [...rest, chip.key]
        legend()
        model.send_msg({ hidden })
      })
      return button
    }))
  }
  const choices = () => {
    options.replaceChildren(...fixed.options.map((name) => {
      const button = h("button", "", name)
      button.type = "button"
      button.setAttribute("aria-pressed", name === option)
      button.addEventListener("click", () => { option = name; choices(); model.send_msg({ option }) })
      return button
    }))
  }
  note.style.height = `${fixed.height}px`
  model.on("remove", hide)
  legend()
  choices()
  follow(model, (now) => {
    state = now
    for (const [key, node] of values) put(node, state.values?.[key] ?? "")
    note.hidden = !state.note
    if (state.note && note.textContent !== state.note) note.replaceChildren(h("span", "", state.note))
  })
  return root
}
