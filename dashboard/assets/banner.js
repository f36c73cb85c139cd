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
  action.addEventListener("click", () => model.send_msg({ action: model.action[0] }))
  root.append(words, stages, action, track)
  const update = () => {
    root.dataset.kind = model.kind
    root.hidden = !model.kind
    title.textContent = model.title
    text.textContent = model.text
    code.textContent = model.code
    code.hidden = !model.code
    action.hidden = model.action.length === 0
    action.textContent = model.action[1] || ""
    stages.hidden = model.stages.length === 0
    stages.replaceChildren(...model.stages.map(([name, state]) => {
      const item = h("li", state)
      item.append(h("i", "", { done: "✓", now: "", later: "" }[state]), h("span", "", name))
      return item
    }))
    track.hidden = model.stages.length === 0
    fill.style.width = `${Math.round(100 * Math.max(0.02, model.fraction))}%`
  }
  model.on(["kind", "title", "text", "code", "action", "stages", "fraction"], update)
  update()
  return root
}

function h(tag, name, text) {
  const node = document.createElement(tag)
  if (name) node.className = name
  if (text !== undefined) node.textContent = text
  return node
}
