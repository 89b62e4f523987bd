from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from golden_files import Golden

from servekit.domain.gpu import Gpu
from servekit.domain.gpu_load import GpuSample, gpu_loads
from servekit.domain.load import LoadProfile, Record, summarise
from servekit.domain.report import LoadReport
from servekit.domain.slo import judge, parse_slo
from servekit.render.chart import Chart, Line, number, svg
from servekit.render.report import report_html

GPU = Gpu(3, "GPU-abc", "NVIDIA H200")


def sample_report(gpus: bool = True, slo: str | None = "p99<50ms,errors<0.1%") -> LoadReport:
    """Two users, 2 s of warm-up, 8 s measured, one stall of 2 s, three failures of a hostile server."""
    records = [Record(i * 0.05, 4.0 + i % 7, 200) for i in range(100)]
    records += [Record(5.1, 2000.0, 200), Record(5.1, 2000.0, 200)]
    records += [Record(7.1 + i * 0.05, 5.0, 200) for i in range(50)]
    records += [Record(8.0 + i / 10, 1.0, 503, "<script>alert('no')</script> & worse") for i in range(3)]
    stats = summarise(records, 2, 10)
    samples = [GpuSample(t / 4, "GPU-abc", 60 + t % 9, 5000, 300.0 + t, 44, 1980, 50.0 * t) for t in range(40)]
    return LoadReport(
        profile=LoadProfile("digits", 2, 8, 2, 3, slo),
        stats=stats,
        gpus=gpu_loads((GPU,), samples, 2, 10, stats.answered) if gpus else (),
        gpu_note=None if gpus else "The deployment runs on the CPU: no GPU was measured.",
        verdicts=judge(parse_slo(slo), stats.measured()) if slo else (),
        first_answer_ms=31.5,
        started="2026-12-01T05:00:00+00:00",
        elapsed_s=10,
        interrupted=False,
        client_cpu_percent=42.0,
        client_processes=1,
        command="servekit loadtest --model digits",
        server={"Model": "digits 1.0"},
        host={"CPU": "a <CPU>", "torch": "2.13.0"},
    )


def test_golden(golden: Golden) -> None:
    golden("report.html", report_html(sample_report()))


def test_it_is_one_file_that_asks_nobody() -> None:
    page = report_html(sample_report())
    assert not re.findall(r"""(?:src|href)\s*=|url\(|@import|https?://(?!www\.w3\.org)""", page)
    assert len(page) < 300_000


def test_what_comes_from_outside_is_text() -> None:
    page = report_html(sample_report())
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "a &lt;CPU&gt;" in page


def test_tags_are_balanced() -> None:
    open_tags: list[str] = []
    void = {"meta", "br", "rect", "line", "path"}

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in void:
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in void:
                assert open_tags.pop() == tag

    Checker().feed(report_html(sample_report()))
    assert open_tags == []


def test_without_a_gpu_a_sentence_stands_where_zeros_would() -> None:
    page = report_html(sample_report(gpus=False))
    assert "no GPU was measured" in page
    assert "GPU busy" not in page


def test_the_verdict_is_the_first_thing() -> None:
    assert "objective missed" in report_html(sample_report(slo="p99<50ms,errors<0.1%"))
    assert "objective met" in report_html(sample_report(slo="p50<50ms"))
    assert "no objective was set" in report_html(sample_report(slo=None))


def test_interruption_and_a_busy_client_are_said() -> None:
    page = report_html(dataclasses.replace(sample_report(), interrupted=True, client_cpu_percent=99.0))
    assert "was interrupted after 10 s" in page
    assert "load generator was busy all the time" in page


def test_the_stall_is_in_the_drawing_of_p99() -> None:
    page = report_html(sample_report())
    points = re.search(r'data-label="p99" data-unit="ms" data-points="([^"]*)"', page)
    assert points is not None
    by_second = dict(tuple(map(float, pair.split(","))) for pair in points.group(1).split(";"))
    assert by_second[6.0] == 2000


def test_the_json_form_is_json() -> None:
    data = json.loads(json.dumps(sample_report().to_dict()))
    assert (data["schema"], data["passed"], data["client_limited"]) == (1, False, False)
    assert data["gpus"][0]["gpu"]["uuid"] == "GPU-abc"


def test_a_gap_is_no_zero() -> None:
    drawing = svg(Chart("t", "ms", (Line("a", ((0, 1.0), (1, None), (2, 3.0))),), 3, 0))
    path = ElementTree.fromstring(drawing).find(".//path[@class='line s0']")
    assert path is not None
    assert path.attrib["d"].count("M") == 2, "the pen is lifted over the gap"
    assert path.attrib["data-points"] == "0.00,1;2.00,3"


def test_a_log_axis_only_where_a_linear_one_would_hide_something() -> None:
    calm = svg(Chart("t", "ms", (Line("a", ((0, 10.0), (1, 30.0))),), 2, 0))
    stall = svg(Chart("t", "ms", (Line("a", (*((t, 3.0) for t in range(9)), (9, 2000.0))),), 10, 0))
    assert ">10<" in stall and ">1,000<" in stall and ">10,000<" in stall
    assert ">0<" in calm and ">0<" not in stall


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (0.0123, "0.0123"), (1.5, "1.5"), (12.345, "12.3"), (763.3, "763"), (12345.6, "12,346")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text
