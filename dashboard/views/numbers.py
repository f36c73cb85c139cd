"""JavaScript by which Bokeh writes numbers: on axes and in tooltips, as the rest of the page."""

from __future__ import annotations

SI = """
// One prefix for all ticks of an axis: 5 k below 10 k, not 5,000.
const a = Math.max(...ticks.map(Math.abs)), r = (v, u) => String(+v.toPrecision(3)) + u
if (tick === 0) return "0"
if (a >= 1e9) return r(tick / 1e9, " G")
if (a >= 1e6) return r(tick / 1e6, " M")
if (a >= 1e4) return r(tick / 1e3, " k")
return tick.toLocaleString("en", {maximumFractionDigits: 3})
"""

BYTES = """
const a = Math.max(...ticks.map(Math.abs)), r = (v, u) => String(+v.toPrecision(3)) + u
if (tick === 0) return "0"
if (a >= 2**30) return r(tick / 2**30, " GiB")
if (a >= 2**20) return r(tick / 2**20, " MiB")
if (a >= 2**10) return r(tick / 2**10, " KiB")
return String(+tick.toPrecision(3)) + " B"
"""

NUMBER = """
const a = Math.abs(value)
if (!isFinite(value)) return "–"
if (a >= 1e9) return (value / 1e9).toPrecision(3) + " G"
if (a >= 1e6) return (value / 1e6).toPrecision(3) + " M"
return value.toLocaleString("en", {maximumFractionDigits: a < 10 ? 2 : a < 100 ? 1 : 0})
"""
"""JavaScript: a number of a tooltip. Not known is a dash."""

SIZE = """
const a = Math.abs(value)
if (!isFinite(value)) return "–"
for (const [unit, name] of [[2**30, "GiB"], [2**20, "MiB"], [2**10, "KiB"]])
    if (a >= unit) return (value / unit).toPrecision(3) + " " + name
return value.toFixed(0) + " B"
"""
"""JavaScript: bytes of a tooltip."""

CLOCK = """
const d = new Date(%s), p = (n) => String(n).padStart(2, "0")
return `${p(d.getHours())}:${p(d.getMinutes())}:${p(d.getSeconds())}`
"""
"""JavaScript: a wall clock in the browser's own zone."""
