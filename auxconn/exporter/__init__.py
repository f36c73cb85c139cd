"""Prometheus: the catalogue's metrics of every engine, for what outlives a page.

A dashboard shows the last minutes; a cluster's weeks, and the alert that wakes somebody, are
Prometheus' work. `formulas` reads the catalogue's formulas, `families` says what each becomes
(a counter, a level, a histogram), `tally` adds the rows up as they come, `account` keeps that
for every engine that is heard, `scrape` hands it to prometheus-client and `server` serves it.
`promql`, `grafana` and `rules` say how it is read again.
"""
