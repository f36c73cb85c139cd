// The header: how it stands with the engine, what it is, and the controls of the view.
// It also notices when the page's own server falls silent, which no server could tell.

const SIGNS = {
  live: "●", idle: "●", paused: "❚❚", starting: "◌", stale: "✕", gone: "✕", stopped: "■",
  none: "○", still: "□", replay: "↻", lost: "⚠",
}

export function render({ model, el }) {
  const bar = h("div", "bar")
  const brand = h("span", "brand", "auxconn")
  const engine = h("select", "engine")
  engine.title = "Engine"
  engine.addEventListener("change", () => send("engine", engine.value))
  const pill = h("span", "pill")
  pill.setAttribute("role", "status")
  const sign = h("span", "sign")
  const word = h("span", "word")
  pill.append(sign, word)
  const more = h("span", "more")
  const facts = h("span", "facts")
  const spacer = h("span", "spacer")

  const back = button("back", "", "Follow the engine again (double-click in a plot)", () => send("release"))
  const range = h("select", "range")
  range.title = "Stretch of time shown"
  range.addEventListener("change", () => send("window", Number(range.value)))
  const pause = button("pause", "", "Pause the view; reading goes on (space)", () => send("pause"))
  pause.hidden = JSON.parse(model.fixed).replay
  const theme = button("icon theme", "", "Light or dark", () => {
    if (fixed.page) try { localStorage.setItem("auxconn-theme", shown.theme === "dark" ? "light" : "dark") } catch { /* private mode */ }
    send("theme")
  })
  const menu = button("icon menu", "⋯", "More")
  bar.append(brand, engine, pill, more, facts, spacer, back, range, pause, theme, menu)

  const list = h("div", "list")
  list.popover = "auto"
  bar.append(list)
  menu.addEventListener("click", () => {
    list.replaceChildren(...(shown.menu || []).map((entry) => {
      const item = h("button", "item")
      item.type = "button"
      item.disabled = Boolean(entry.disabled)
      item.append(h("span", "", entry.label), h("small", "", entry.hint || ""))
      item.addEventListener("click", () => {
        list.hidePopover()
        if (entry.ask && !confirm(entry.ask)) return
        send(entry.action)
      })
      return item
    }))
    list.showPopover()
    const at = menu.getBoundingClientRect()
    list.style.left = `${Math.max(8, at.right - list.offsetWidth)}px`
    list.style.top = `${at.bottom + 6}px`
  })

  const fixed = JSON.parse(model.fixed)
  let shown = {}, heard = performance.now(), lost = false
  const send = (action, value) => model.send_msg(value === undefined ? { action } : { action, value })

  const state = () => {
    const now = lost ? "lost" : shown.state || "none"
    pill.dataset.state = now
    put(sign, SIGNS[now] || "○")
    put(word, lost ? "page disconnected" : shown.word || "")
    const silent = Math.round((performance.now() - heard) / 1000)
    put(more, lost ? `no word from the dashboard's server for ${silent} s` : shown.more || "")
    more.title = more.textContent
  }
  const watch = setInterval(() => {
    const silent = performance.now() - heard > 5000 && !document.hidden
    if (silent || lost) { lost = silent; state() }
  }, 1000)
  model.on("beat", () => {
    heard = performance.now()
    // The server sends no more than a browser takes in; every fifth beat is answered.
    if (fixed.page && model.beat % 5 === 0) send("heard", model.beat)
    if (lost) { lost = false; state() }
  })

  range.append(...fixed.windows.map(([label, value]) => new Option(label, value)))
  let known = {}
  const changed = (...names) => names.some((name) => JSON.stringify(shown[name]) !== JSON.stringify(known[name]))
  follow(model, (now) => {
    known = shown
    shown = now
    state()
    if (changed("facts")) facts.replaceChildren(...(shown.facts || []).map((fact) => {
      const node = h("span", fact.alert ? "fact warn" : "fact", fact.text)
      node.title = fact.title
      return node
    }))
    if (changed("engines", "engine")) {
      engine.hidden = (shown.engines || []).length < 2
      engine.replaceChildren(...(shown.engines || []).map(([name, label]) => new Option(label, name)))
      engine.value = shown.engine
    }
    if (changed("window")) range.value = shown.window
    back.hidden = !shown.zoomed
    put(back, shown.zoomed ? `zoomed ${clock(shown.zoomed[0])} – ${clock(shown.zoomed[1])}  ×` : "")
    range.classList.toggle("off", Boolean(shown.zoomed))
    put(pause, shown.paused ? "▶  Resume view" : "❚❚  Pause view")
    pause.setAttribute("aria-pressed", Boolean(shown.paused))
    put(theme, shown.theme === "dark" ? "☀" : "☾")
    if (fixed.page && shown.theme) document.documentElement.dataset.theme = shown.theme
  })

  // A tab that nobody sees is not drawn for.
  const seen = () => { heard = performance.now(); send("seen", !document.hidden) }
  document.addEventListener("visibilitychange", seen)

  const keys = (event) => press(event)
  if (fixed.page) {
    document.addEventListener("keydown", keys)
    const help = h("dialog", "keys")
    help.append(h("h3", "", "Keys"), ...fixed.keys.map(([key, text]) => {
      const line = h("p")
      line.append(h("kbd", "", key), h("span", "", text))
      return line
    }))
    help.addEventListener("click", () => help.close())
    bar.append(help)
    el.addEventListener("ac-keys", () => help.open ? help.close() : help.showModal())
    if (!fixed.chosen) send("prefers", preferred())
  }
  model.on("remove", () => {
    clearInterval(watch)
    document.removeEventListener("keydown", keys)
    document.removeEventListener("visibilitychange", seen)
  })
  return bar

  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return
    const target = deepest(document.activeElement)
    if (target && /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) {
      if (event.key === "Escape") target.blur()
      return
    }
    const act = {
      " ": () => send("pause"),
      ".": () => send("step"),
      "/": () => find(document, "input.ac-filter")?.focus(),
      "?": () => el.dispatchEvent(new Event("ac-keys")),
      "Escape": () => send("release"),
    }[event.key]
    if (!act || (event.key === " " && target?.tagName === "BUTTON")) return
    event.preventDefault()
    act()
  }
}

function preferred() {
  try {
    const kept = localStorage.getItem("auxconn-theme")
    if (kept) return kept
  } catch { /* private mode */ }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"
}


function deepest(node) {
  while (node?.shadowRoot?.activeElement) node = node.shadowRoot.activeElement
  return node
}

function find(root, selector) {
  const found = root.querySelector(selector)
  if (found) return found
  for (const node of root.querySelectorAll("*")) {
    const inner = node.shadowRoot && find(node.shadowRoot, selector)
    if (inner) return inner
  }
  return null
}
