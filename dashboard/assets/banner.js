// What stands between the user and live numbers: a start under way, an engine that is gone,
// or none at all, with what to do about it.

export function render({ model }) {
  const root = h("section", "banner")
  root.setAttribute("role", "status")
  const words = h("div", "words")
  const title = h("h2"), text = h("p"), code = h("code")
  words.append(title, text, code)
  const stages = h("ol", "stages")
  const track = h("div", "track"), fill = h("div", "fill")
  track.append(fill)
  const action = h("button", "action")
  action.type = "button"
  let asked = ""
  action.addEventListener("click", () => model.send_msg({ action: asked }))
  root.append(words, stages, action, track)
  follow(model, (state) => {
    root.dataset.kind = state.kind || ""
    root.hidden = !state.kind
    put(title, state.title || "")
    put(text, state.text || "")
    put(code, state.code || "")
    code.hidden = !state.code
    const [name, label] = state.action || []
    asked = name || ""
    action.hidden = !name
    put(action, label || "")
    const now = state.stages || []
    stages.hidden = track.hidden = now.length === 0
    // A stage under way turns: it is made anew only when it is another one.
    if (stages.dataset.now !== JSON.stringify(now)) {
      stages.dataset.now = JSON.stringify(now)
      stages.replaceChildren(...now.map(([name, how]) => {
        const item = h("li", how)
        item.append(h("i", "", how === "done" ? "✓" : ""), h("span", "", name))
        return item
      }))
    }
    fill.style.width = `${Math.round(100 * Math.max(0.02, state.fraction || 0))}%`
  })
  return root
}
