"""N items in, N answers out, none of them changed by its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from servekit.probes.proof import compare
from servekit.probes.proof.inputs import GARBAGE
from servekit.probes.proof.problem import ProofError
from servekit.probes.proof.served import Answer, BatchFailedError, Request, Served

# Another batch size means other kernels, which add up in another order: ten times what fp32 may differ by.
_FACTOR = 10


@dataclass(frozen=True)
class Seen:
    """``singles``: an answer an example, each asked alone. ``max_rel``: the largest influence of a batch."""

    singles: list[Answer]
    sizes: tuple[int, ...]
    max_rel: float | None
    malformed: str
    warnings: tuple[str, ...]


def check(served: Served, requests: Sequence[Request], largest: int, tolerance: float) -> Seen:
    """Ask alone, in pairs and in full batches. Raises ProofError for what a server would get wrong."""
    singles = [_alone(served, request) for request in requests]
    sizes = tuple(sorted({1, min(2, largest), largest}))
    judge = getattr(served.handler, "compare", None)
    worst: float | None = None
    for size in sizes[1:]:
        asked = [index % len(requests) for index in range(size)]
        try:
            answers = served.answer([requests[index] for index in asked])
        except BatchFailedError as error:
            raise ProofError(
                f"a batch of {size} fails, although each item is answered alone: {error}.",
                "TorchServe hands over up to batch_size items: answer all of them, in order; or set batch_size = 1.",
            ) from error
        for index, answer in zip(asked, answers, strict=True):
            difference = compare.between(singles[index], answer, judge)
            if difference.fault or (difference.max_rel or 0.0) > _FACTOR * tolerance:
                told = difference.fault or f"relative error {difference.max_rel:.2g}"
                raise ProofError(
                    f"the answer to {requests[index].name} depends on the batch it is in: alone and in a batch of "
                    f"{size} it differs ({told}).",
                    "Is the model in eval mode, and is padding masked? Otherwise set batch_size = 1.",
                )
            if difference.max_rel is not None:
                worst = max(worst or 0.0, difference.max_rel)
    malformed, warnings = _malformed(served, requests[0], singles[0], largest)
    return Seen(singles, sizes, worst, malformed, warnings)


def _alone(served: Served, request: Request) -> Answer:
    try:
        answer = served.answer([request])[0]
    except BatchFailedError as error:
        raise ProofError(
            f"the handler fails on {request.name}: {error}.", "Is it an input of this model, as a client sends it?"
        ) from error
    if answer.status >= 400:
        said = " ".join(answer.body.decode("utf-8", "replace").split())[:300]
        raise ProofError(
            f"the handler refuses {request.name} with HTTP {answer.status}: {said}",
            "An example must be an input of this model, as a client sends it.",
        )
    return answer


def _malformed(served: Served, good: Request, expected: Answer, largest: int) -> tuple[str, tuple[str, ...]]:
    """Put garbage between good items: their answers must not change."""
    if largest < 2:
        return "not tried: batches of 1", ()
    batch = [good, GARBAGE] if largest == 2 else [good, GARBAGE, good]
    try:
        answers = served.answer(batch)
    except BatchFailedError as error:
        return "fails with its batch", (
            f"one malformed item fails the whole batch ({str(error)[:200]}): answer each item by itself, "
            "or set batch_size = 1.",
        )
    judge = getattr(served.handler, "compare", None)
    for index in (0, 2)[: len(batch) - 1]:
        difference = compare.between(expected, answers[index], judge)
        if difference.fault:
            return "changes its neighbours", (
                f"a malformed item changes the answer of its neighbour: {difference.fault}.",
            )
    return ("fails alone" if answers[1].status >= 400 else "is answered"), ()
