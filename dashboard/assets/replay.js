// Plays a recording: play and pause, speed, and a track to go anywhere on.

export function render({ model, el }) {
  const fixed = JSON.parse(model.fixed)
  const length = Math.max(fixed.ends - fixed.begins, 0.001)
  const send = (action, value) => model.send_msg(value === undefined ? { action } : { action, value })
  let shown = {}, held = false

  const strip = h("div", "transport")
  strip.setAttribute("role", "group")
  strip.setAttribute("aria-label", "Replay")
  const play = button("play", "", "Play or pause the recording (space)", () => send("play"))
  const speed = h("select", "speed")
  speed.title = "Seconds of the recording per second"
  speed.append(...fixed.speeds.map((one) => new Option(`× ${one}`, one)))
  speed.addEventListener("change", () => send("speed", Number(speed.value)))
  const time = h("span", "time")
  const now = h("span")
  const day = h("small")
  time.append(now, " ", day)
  const rail = h("div", "rail")
  const track = h("input")
  track.type = "range"
  track.min = 0
  track.max = length
  track.step = "any"
  track.title = "Where in the recording"
  track.setAttribute("aria-label", "Where in the recording")
  rail.append(track)
  for (const [at, text] of fixed.gaps) {
    const gap = h("i", "gap")
    gap.title = `${clock(at)}: ${text}`
    // The thumb's middle runs from 8 px to 8 px before the end.
    gap.style.left = `calc(8px + (100% - 16px) * ${share(at - fixed.begins)})`
    rail.append(gap)
  }
  const total = h("span", "length")
  total.title = `Recorded in ${fixed.folder}`
  const notes = h("div", "notes")
  strip.append(play, speed, time, rail, total, notes)

  // While a hand is on the track, the place of the replay leaves it alone.
  track.addEventListener("input", () => { held = true; place(Number(track.value)) })
  track.addEventListener("change", () => { held = false; send("seek", fixed.begins + Number(track.value)) })
  track.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -5, ArrowDown: -5, ArrowRight: 5, ArrowUp: 5, PageDown: -60, PageUp: 60 }[event.key]
    if (move === undefined) return
    event.preventDefault()
    send("seek", shown.place + move)
  })

  // What else stays in place when the page is scrolled begins below the strip.
  const page = () => el.getRootNode().host?.getRootNode().host
  const size = new ResizeObserver(() => page()?.style.setProperty("--ac-head", `${52 + strip.offsetHeight}px`))
  size.observe(strip)
  model.on("remove", () => size.disconnect())

  follow(model, (state) => {
    shown = state
    put(play, state.playing ? "❚❚  Pause" : "▶  Play")
    play.setAttribute("aria-pressed", state.playing)
    if (document.activeElement !== speed) speed.value = state.speed
    if (!held) {
      track.value = state.place - fixed.begins
      place(state.place - fixed.begins)
    }
    notes.replaceChildren(...[...state.notes, state.problem].filter(Boolean).map((text) =>
      h("span", text === state.problem ? "bad" : "", text)))
  })
  return strip

  function share(seconds) { return Math.min(Math.max(seconds / length, 0), 1) }
  function place(seconds) {
    track.style.setProperty("--done", `calc(8px + (100% - 16px) * ${share(seconds)})`)
    put(now, clock(fixed.begins + seconds))
    put(day, new Date((fixed.begins + seconds) * 1000).toLocaleDateString(undefined, { year: "numeric", month: "short", day: "numeric" }))
    put(total, `${span(seconds)} of ${span(length)}`)
    track.setAttribute("aria-valuetext", `${clock(fixed.begins + seconds)}, ${span(seconds)} of ${span(length)}`)
  }
  function span(seconds) {
    const whole = Math.floor(Math.max(seconds, 0) + 1e-6), p = (v) => String(v).padStart(2, "0")
    const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60
    return hours ? `${hours}:${p(minutes)}:${p(whole % 60)}` : `${minutes}:${p(whole % 60)}`
  }
}
