"""The report of `scripts/hil`: one self-contained page with figures against limits, curves, and how to repeat it.

Called by `hil.py`. Invariant: what was not run or not judged is shown as such and never counts as passed.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hil_figures import FIGURES, Run
from hil_scenario import Limit, Scenario

from orind.daemon.panels import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Line, Mark, Panel, draw
from orind.kernels.report.markup import Markup, joined, tag

BUCKETS = 200
OUTCOME_COLOURS = {"ok": GREEN, "degraded": ORANGE, "expired": RED, "dropped": PURPLE}
STYLE = """
body{font:14px/1.5 system-ui,sans-serif;color:#1f2328;max-width:1240px;margin:24px auto;padding:0 20px}
h1{font-size:22px;margin-bottom:4px}h2{font-size:18px;margin-top:42px;border-top:1px solid #d0d7de;padding-top:18px}
h3{font-size:14px;margin:20px 0 6px}table{border-collapse:collapse}td,th{padding:3px 14px 3px 0;text-align:left;
vertical-align:top;border-bottom:1px solid #eaeef2}th{font-weight:600}
.n{text-align:right;font-variant-numeric:tabular-nums}
.pass{color:#1a7f37;font-weight:600}.fail{color:#d1242f;font-weight:600}.none{color:#57606a}
.note{background:#fff8c5;border:1px solid #d4a72c66;padding:8px 12px;border-radius:6px}
pre{background:#f6f8fa;padding:10px;overflow-x:auto;font-size:12px;line-height:1.4}summary{cursor:pointer;margin-top:10px}
img{width:100%;height:auto;margin-top:14px}ol{columns:2;font-size:12px}code{font-size:12px}
"""
VIRTUAL = (
    "The board is simulated: power, temperatures and clocks come from a model, heated and cooled {:g} times as fast as "
    "a real one. Frames, engines, deaths, reloads and answers are real. Engines run on this machine's CPU: how busy "
    "they are is how busy the simulated GPU is, but the time of a frame does not follow its clock, so that times and "
    "frames a second are printed and not judged."
)
REAL = "This way of this script was never tried on an Orin: look for faults of the script first, and report them."


@dataclass(frozen=True, slots=True)
class Judged:
    """A limit, what was found, and whether it was kept (None: not judged on this board)."""

    limit: Limit
    value: float | None
    kept: bool | None


@dataclass(slots=True)
class Outcome:
    """What came of one scenario. not_run: why it was not begun; broke: why it ended early."""

    name: str
    scenario: Scenario
    text: str
    not_run: str = ""
    broke: str = ""
    run: Run = field(default_factory=Run)
    figures: dict[str, dict[str, float | None]] = field(default_factory=dict)
    judged: list[Judged] = field(default_factory=list)

    @property
    def ran(self) -> bool:
        return not self.not_run

    @property
    def failed(self) -> bool:
        return self.ran and bool(self.broke or self.run.wrong or any(j.kept is False for j in self.judged))

    @property
    def verdict(self) -> str:
        return "not run" if not self.ran else "fail" if self.failed else "pass"

    def reasons(self) -> list[str]:
        """Why it failed or was not run, in words."""
        if not self.ran:
            return [self.not_run]
        broken = [f"{j.limit.text}: {shown(j.value)}" for j in self.judged if j.kept is False]
        return [*([self.broke.splitlines()[0]] if self.broke else []), *self.run.wrong, *broken]

    def line(self) -> str:
        """For the terminal."""
        why = "; ".join(self.reasons())
        return f"{self.verdict:8} {self.name:24} {self.run.seconds:5.0f} s{f'  {why}' if why else ''}"


def shown(value: float | None) -> str:
    if value is None:
        return "nothing seen"
    return f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"


def write_report(folder: Path, about: Mapping[str, str], outcomes: Sequence[Outcome], left: str, faster: float) -> Path:
    """report.html in the folder. left: settings of a real board that could not be put back. faster: 0 on a real one."""
    failed, ran = sum(o.failed for o in outcomes), sum(o.ran for o in outcomes)
    verdict = "fail" if failed or left else "pass" if ran else "not run"
    counted = f"{ran - failed} passed, {failed} failed, {len(outcomes) - ran} not run"
    page = tag(
        "html",
        tag("head", tag("meta", charset="utf-8"), tag("title", f"hil: {verdict}"),
            tag("style", Markup(STYLE))),
        tag(
            "body",
            tag("h1", "Hardware in the loop: ", _verdict(verdict)),
            tag("p", f"{counted}; {about['time']}"),
            tag("p", VIRTUAL.format(faster) if faster else REAL, class_="note"),
            tag("p", f"Settings of the board were not put back: {left}", class_="fail") if left else None,
            _summary(outcomes),
            *(_section(outcome, folder) for outcome in outcomes),
            tag("h2", "To do it again"),
            tag("table", *(tag("tr", tag("th", key), tag("td", value)) for key, value in about.items())),
            _meanings(),
        ),
        lang="en",
    )
    path = folder / "report.html"
    path.write_text(f"<!doctype html>\n{page}\n")
    return path


def _verdict(word: str) -> Markup:
    return tag("span", word, class_={"pass": "pass", "fail": "fail"}.get(word, "none"))


def _summary(outcomes: Sequence[Outcome]) -> Markup:
    rows = [
        tag("tr", tag("td", tag("a", o.name, href=f"#{o.name}")), tag("td", o.scenario.title),
            tag("td", f"{o.run.seconds:.0f}" if o.ran else "", class_="n"), tag("td", _verdict(o.verdict)),
            tag("td", "; ".join(o.reasons())))
        for o in outcomes
    ]
    head = tag("tr", *(tag("th", text) for text in ("scenario", "what", "s", "verdict", "why")))
    return tag("table", head, *rows)


def _section(outcome: Outcome, folder: Path) -> Markup:
    parts: list[Markup | None] = [tag("h2", outcome.name, ": ", _verdict(outcome.verdict), id=outcome.name)]
    parts.append(tag("p", outcome.scenario.title, ". ", outcome.scenario.why))
    if outcome.reasons():
        parts.append(tag("ul", *(tag("li", reason) for reason in outcome.reasons()),
                         class_="fail" if outcome.failed else "none"))
    if outcome.judged:
        parts += [_limits(outcome), _picture(outcome, folder), _course(outcome), _table(outcome)]
    if outcome.ran:
        parts.append(_details("the daemon's log", _read(folder / outcome.name / "orind.log")))
        parts.append(_details("configuration", _read(folder / outcome.name / "orind.yaml")))
        parts.append(_details("policy at the end", _read(folder / outcome.name / "policy.yaml")))
    parts.append(_details("scenario", outcome.text))
    if outcome.judged:
        parts.append(tag("p", f"Samples and frames: {outcome.name}/samples.csv, {outcome.name}/frames.csv"))
    return joined(*parts)


def _limits(outcome: Outcome) -> Markup:
    words = {True: "pass", False: "fail", None: "not judged"}
    rows = []
    for judged in outcome.judged:
        limit = judged.limit
        what = f"{FIGURES[limit.figure][0]}{f' (judged on a {limit.on} board)' if limit.on else ''}"
        bound = f"{limit.sign} {limit.bound:g}"
        rows.append(tag("tr", tag("td", limit.phase or "whole run"), tag("td", what), tag("td", bound, class_="n"),
                        tag("td", shown(judged.value), class_="n"), tag("td", _verdict(words[judged.kept]))))
    head = tag("tr", *(tag("th", text) for text in ("phase", "figure", "limit", "found", "")))
    return tag("table", head, *rows)


def _picture(outcome: Outcome, folder: Path) -> Markup:
    """In the page, so that it is whole by itself, and as a file."""
    data = draw_run(outcome)
    (folder / outcome.name / "run.png").write_bytes(data)
    return tag("img", src=f"data:image/png;base64,{b64encode(data).decode()}", alt=f"curves of {outcome.name}")


def _course(outcome: Outcome) -> Markup:
    """What was done when, with the numbers of the picture's marks, and the phases."""
    steps = tag("ol", *(tag("li", f"{at_s:.1f} s: {what}") for at_s, what in outcome.run.marks))
    spans = [f"{name} {begin:.1f} to {end:.1f} s" for name, (begin, end) in outcome.run.phases().items() if name]
    return joined(steps, tag("p", f"Phases: {', '.join(spans)}", class_="none") if spans else None)


def _table(outcome: Outcome) -> Markup:
    """Every figure by phase."""
    phases = list(outcome.figures)
    head = tag("tr", tag("th", "figure"), *(tag("th", phase or "whole run", class_="n") for phase in phases))
    rows = [
        tag("tr", tag("td", tag("code", name)),
            *(tag("td", _cell(outcome.figures[phase][name]), class_="n") for phase in phases))
        for name in FIGURES
    ]
    return tag("details", tag("summary", "all figures by phase"), tag("table", head, *rows))


def _cell(value: float | None) -> str:
    return "" if value is None else shown(value)


def _details(title: str, text: str) -> Markup | None:
    return tag("details", tag("summary", title), tag("pre", text)) if text else None


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _meanings() -> Markup:
    rows = [tag("tr", tag("td", tag("code", name)), tag("td", what)) for name, (what, _) in FIGURES.items()]
    return tag("details", tag("summary", "what the figures mean"), tag("table", *rows))


# -- curves ------------------------------------------------------------------------------------------------------


def draw_run(outcome: Outcome) -> bytes:
    """Power, temperature, clocks, load and answers over time as PNG; what was done is marked by its number."""
    run = outcome.run
    at = [s.at_s for s in run.samples]

    def line(label: str, name: str, colour: str = BLUE, ranged: bool = True) -> Line:
        return Line(label, at, [getattr(s, name) for s in run.samples], colour, ranged)

    rates = [Line(name, [n + 0.5 for n in range(len(counts))], counts, OUTCOME_COLOURS.get(name, GREY), False)
             for name, counts in _rates(run).items()]
    median, longest, times = _latencies(run)
    charts = [
        Panel("Board power as the board shows it, W",
              [line("board", "board_w"), line("budget", "budget_w", ORANGE, False)], from_zero=True),
        Panel("Hottest zone as the board shows it, C", [line("junction", "tj_c", RED)]),
        Panel("GPU clock, MHz", [line("cap", "cap_mhz", ORANGE), line("clock", "gpu_mhz")], from_zero=True),
        Panel("Share of the time in which the engines worked", [line("busy", "busy", GREEN)], from_zero=True,
              least=[1]),
        Panel("Faults of the board that the daemon reports",
              [Line("faults", at, [len(s.alarms) for s in run.samples], RED, False)], from_zero=True, least=[1]),
        Panel("Frames a second, by what became of them", rates, from_zero=True),
        Panel("From sending to the answer, ms (answers ok or degraded)",
              [Line("longest", times, longest, GREY, False), Line("median", times, median, BLUE, False)],
              from_zero=True),
    ]
    marks = [Mark(at_s, str(number)) for number, (at_s, _) in enumerate(run.marks, 1)]
    note = "numbers: what was done, listed below" if marks else "nothing was done to the board or the daemon"
    return draw(f"{outcome.name}: {outcome.scenario.title}", note, max(run.seconds, 1.0), charts, marks)


def _rates(run: Run) -> dict[str, list[float]]:
    """By outcome, frames sent within each second."""
    found = {outcome: [0.0] * max(1, int(run.seconds)) for outcome in sorted({f.outcome or "lost" for f in run.frames})}
    for frame in run.frames:
        if frame.sent_s < int(run.seconds):
            found[frame.outcome or "lost"][int(frame.sent_s)] += 1
    return found


def _latencies(run: Run) -> tuple[list[float | None], list[float | None], list[float]]:
    """Median and maximum of each stretch of the run, and the stretches' middles."""
    width_s = max(run.seconds, 1.0) / BUCKETS
    parts: dict[int, list[float]] = {}
    for frame in run.frames:
        if frame.answered_s is not None and frame.outcome in ("ok", "degraded"):
            parts.setdefault(int(frame.sent_s / width_s), []).append((frame.answered_s - frame.sent_s) * 1e3)
    ordered = [sorted(parts.get(number, [])) for number in range(BUCKETS)]
    median = [part[len(part) // 2] if part else None for part in ordered]
    longest = [part[-1] if part else None for part in ordered]
    return median, longest, [(number + 0.5) * width_s for number in range(BUCKETS)]
