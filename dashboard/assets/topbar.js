// The header: how it stands with the engine, what it is, and the controls of the view.
// It also notices when the page's own server falls silent, which no server could tell.

const SIGNS = {
  live: "●", idle: "●", paused: "❚❚", starting: "◌", stale: "✕", gone: "✕", stopped: "■",
  none: "○", still: "□", lost: "⚠",
}

export function render({ model, el }) {
  const bar = h("div", "bar")
  const brand = h("span", "brand", "auxconn")
  const engine = h("select", "engine")
  engine.title = "Engine"
  engine.addEventListener("change", () => { model.engine = engine.value })
  const pill = h("span", "pill")
  pill.setAttribute("role", "status")
  const sign = h("span", "sign")
  const word = h("span", "word")
  pill.append(sign, word)
  const more = h("span", "more")
  const facts = h("span", "facts")
  const spacer = h("span", "spacer")

  const back = button("back", "", "Follow the engine again (double-click in a plot)", "release")
  const range = h("select", "range")
  range.title = "Stretch of time shown"
  range.addEventListener("change", () => { model.window = Number(range.value) })
  const pause = button("pause", "", "Pause the view; reading goes on (space)", "pause")
  const theme = button("icon theme", "", "Light or dark", "theme")
  const menu = button("icon menu", "⋯", "More", "")
  bar.append(brand, engine, pill, more, facts, spacer, back, range, pause, theme, menu)

  const list = h("div", "list")
  list.popover = "auto"
  bar.append(list)
  menu.addEventListener("click", () => {
    list.replaceChildren(...model.menu.map((entry) => {
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

  const send = (action) => model.send_msg({ action })
  function button(name, text, title, action) {
    const node = h("button", name, text)
    node.type = "button"
    node.title = title
    if (action) node.addEventListener("click", () => send(action))
    return node
  }

  let heard = performance.now()
  let lost = false
  const state = () => {
    const now = lost ? "lost" : model.state
    pill.dataset.state = now
    sign.textContent = SIGNS[now] || "○"
    word.textContent = lost ? "page disconnected" : model.word
    more.textContent = lost
      ? `no word from the dashboard's server for ${Math.round((performance.now() - heard) / 1000)} s`
      : model.more
    more.title = more.textContent
  }
  const watch = setInterval(() => {
    const silent = performance.now() - heard > 5000 && !document.hidden
    if (silent || lost) { lost = silent; state() }
  }, 1000)
  model.on("beat", () => { heard = performance.now(); if (lost) { lost = false; state() } })
  model.on(["state", "word", "more"], state)
  const tell = () => facts.replaceChildren(...model.facts.map((fact) => {
    const node = h("span", fact.alert ? "fact alert" : "fact", fact.text)
    node.title = fact.title
    return node
  }))
  model.on("facts", tell)
  const engines = () => {
    engine.hidden = model.engines.length < 2
    engine.replaceChildren(...model.engines.map((name) => new Option(name, name)))
    engine.value = model.engine
  }
  model.on(["engines", "engine"], engines)
  const windows = () => {
    range.replaceChildren(...model.windows.map(([label, value]) => new Option(label, value)))
    range.value = model.window
    back.hidden = !model.zoomed
    back.textContent = model.zoomed ? `${zoomText(model.zoomed)}  ×` : ""
    range.classList.toggle("off", Boolean(model.zoomed))
  }
  model.on(["windows", "window", "zoomed"], windows)
  const pausing = () => {
    pause.textContent = model.paused ? "▶  Resume view" : "❚❚  Pause view"
    pause.setAttribute("aria-pressed", model.paused)
  }
  model.on("paused", pausing)
  const themed = () => {
    theme.textContent = model.theme === "dark" ? "☀" : "☾"
    if (model.page) {
      document.documentElement.dataset.theme = model.theme
      try { localStorage.setItem("auxconn-theme", model.theme) } catch { /* private mode */ }
    }
  }
  model.on("theme", themed)
  state(); tell(); engines(); windows(); pausing(); themed()

  const keys = (event) => press(event, model, send)
  if (model.page) {
    document.addEventListener("keydown", keys)
    const help = h("dialog", "keys")
    help.append(h("h3", "", "Keys"), ...model.keys.map(([key, text]) => {
      const line = h("p")
      line.append(h("kbd", "", key), h("span", "", text))
      return line
    }))
    help.addEventListener("click", () => help.close())
    bar.append(help)
    model.on("msg:custom", (event) => { if (event.data?.show === "keys") help.showModal() })
    el.addEventListener("ac-keys", () => help.open ? help.close() : help.showModal())
    if (!model.chosen) send(`prefers:${preferred()}`)
  }
  model.on("remove", () => {
    clearInterval(watch)
    document.removeEventListener("keydown", keys)
  })
  return bar

  function press(event, model, send) {
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

function zoomText([start, end]) {
  const p = (n) => String(n).padStart(2, "0")
  const t = (s) => { const d = new Date(s * 1000); return `${p(d.getHours())}:${p(d.getMinutes())}:${p(d.getSeconds())}` }
  return `zoomed ${t(start)} – ${t(end)}`
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

function h(tag, name, text) {
  const node = document.createElement(tag)
  if (name) node.className = name
  if (text !== undefined) node.textContent = text
  return node
}
