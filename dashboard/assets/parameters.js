// The parameters of a workload. What is entered stays until it is applied or another workload
// comes; what is wrong with it is for the server to say, so values travel as they were typed.

export function render({ model }) {
  const kinds = JSON.parse(model.fixed).kinds
  const root = h("details", "parameters")
  const summary = h("summary")
  const changed = h("span", "changed")
  summary.append(h("span", "", "Parameters"), changed)
  const form = h("form")
  form.noValidate = true
  const grid = h("div", "grid"), hint = h("p", "hint")
  const apply = h("button", "apply", "Apply")
  apply.type = "submit"
  const defaults = button("", "Defaults", "Fill in the defaults; nothing is applied yet", () => {
    for (const { input } of fields) input.value = ""
    look()
  })
  const buttons = h("div", "buttons")
  buttons.append(apply, defaults)
  form.append(grid, hint, buttons)
  root.append(summary, form)

  let shown = {}, fields = []
  const asked = (input, field) => input.value.trim() === field.default ? "" : input.value.trim()
  const look = () => {
    const differs = fields.some(({ field, input }) => asked(input, field) !== (shown.values[field.name] ?? ""))
    apply.disabled = shown.disabled || !differs
    defaults.disabled = shown.disabled || fields.every(({ field, input }) => asked(input, field) === "")
    for (const { input, field, row } of fields) {
      input.disabled = Boolean(shown.disabled)
      row.classList.toggle("set", asked(input, field) !== "")
    }
  }
  const build = () => {
    fields = (kinds[shown.kind] || []).map((field) => {
      const row = h("label", "field"), input = h("input")
      input.type = "text"
      input.inputMode = "decimal"
      input.autocomplete = "off"
      input.name = field.name
      input.placeholder = field.default || "none"
      input.value = shown.values[field.name] ?? ""
      input.maxLength = 40
      input.addEventListener("input", look)
      row.title = field.hint
      input.addEventListener("focus", () => put(hint, field.hint))
      const name = h("span", "name", field.label)
      name.append(h("small", "", field.unit))
      row.append(name, input)
      return { field, input, row }
    })
    grid.replaceChildren(...fields.map(({ row }) => row))
    put(hint, "")
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault()
    if (shown.disabled) return
    const values = Object.fromEntries(fields.map(({ field, input }) => [field.name, asked(input, field)]))
    model.send_msg({ kind: shown.kind, values })
  })
  follow(model, (now) => {
    const before = JSON.stringify([shown.kind, shown.values])
    shown = { values: {}, ...now }
    if (JSON.stringify([shown.kind, shown.values]) !== before) build()
    const set = (kinds[shown.kind] || []).filter(({ name }) => shown.values[name])
    put(changed, set.map(({ name, label }) => `${label} ${shown.values[name]}`).join(", ") || "defaults")
    changed.title = changed.textContent
    root.hidden = !fields.length
    look()
  })
  return root
}
