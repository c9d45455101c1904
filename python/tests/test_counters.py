"""What contexts count, also as text for Prometheus. The ranks are threads."""

import re

import numpy
import pytest
from conftest import run_ranks

import gloo_rs


def test_calls_and_bytes_of_links_are_counted(shared_memory):
    def program(context):
        assert context.counters()["calls"] == []
        for _ in range(3):
            context.allreduce(numpy.ones(4), algorithm="ring")
        context.barrier(algorithm="dissemination")
        counters = context.counters()
        calls = {(call["collective"], call["algorithm"]): call for call in counters["calls"]}
        assert len(calls) == 2
        ring = calls["allreduce", "ring"]
        assert (ring["link"], ring["calls"], ring["failures"], ring["bytes"]) == ("messages", 3, 0, 96)
        assert calls["barrier", "dissemination"]["bytes"] == 0
        (link,) = counters["links"]
        assert link["peer"] == 1 - context.rank
        assert link["sent_bytes"] >= 96 and link["received_bytes"] >= 96
        text = gloo_rs.prometheus_text({"a": context, 'b "c"': context})
        samples = [line for line in text.splitlines() if not line.startswith("#")]
        assert all(re.fullmatch(r'gloo_rs_[a-z_]+_total\{(?:[a-z]+="(?:[^"\\]|\\.)*",?)+\} \d+', line) for line in samples)
        labels = f'rank="{context.rank}",collective="allreduce",algorithm="ring",link="messages"'
        assert f'gloo_rs_call_bytes_total{{context="b \\"c\\"",{labels}}} 96' in samples
        assert f'gloo_rs_calls_total{{context="a",{labels}}} 3' in samples
        assert len(samples) == len(set(samples)) == 2 * (3 * 2 + 2)
        context.barrier()

    run_ranks(2, program, shared_memory=shared_memory)


def test_what_is_no_context_is_refused():
    assert gloo_rs.prometheus_text({}).count("# TYPE ") == 5
    with pytest.raises(TypeError):
        gloo_rs.prometheus_text({"a": 1})
