"""Wrapper base classes forward every member of their contract with the declared signature."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import pytest

from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.probing import Probed, ProbeOptions, ProbeResult
from tieredstore.contracts.segment import FileSegment, SegmentProvider, WriterEpoch
from tieredstore.contracts.usage import MeteredProvider, Prices, Usage, read_usage
from tieredstore.contracts.wrapping import (
    WrapperEpoch,
    WrapperMetadataStore,
    WrapperProvider,
    WrapperSegment,
    find_layer,
)
from tieredstore.metrics import Metrics
from tieredstore.providers.memory.provider import MemoryProvider

BASES: list[tuple[Any, Any]] = [
    (FileSegment, WrapperSegment),
    (SegmentProvider, WrapperProvider),
    (WriterEpoch, WrapperEpoch),
    (MetadataStore, WrapperMetadataStore),
]


def members(contract: Any) -> list[str]:
    return [name for name in vars(contract) if not name.startswith("_")]


CASES = [
    pytest.param(contract, base, name, id=f"{contract.__name__}.{name}")
    for contract, base in BASES
    for name in members(contract)
]


class Inner:
    """Object that accepts any method call. Returns itself, the method's name and the arguments."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **keys: (self, name, args, keys)


@pytest.mark.parametrize(("contract", "base", "name"), CASES)
def test_a_base_has_each_member_as_the_contract_declares_it(
    contract: Any, base: Any, name: str
) -> None:
    declared, own = vars(contract)[name], vars(base)[name]
    assert type(own) is type(declared)
    if not isinstance(declared, property):
        assert inspect.signature(own) == inspect.signature(declared)


@pytest.mark.parametrize(("contract", "base", "name"), CASES)
def test_a_base_forwards_each_member_with_all_its_arguments(
    contract: Any, base: Any, name: str
) -> None:
    inner = Inner()
    declared = vars(contract)[name]
    if isinstance(declared, property):
        seen = {name: object()}
        vars(inner).update(seen)
        assert getattr(base(inner), name) is seen[name]
        return
    parameters = list(inspect.signature(declared).parameters.values())[1:]
    values = {parameter.name: object() for parameter in parameters}
    answer = None if inspect.signature(declared).return_annotation == "None" else inner
    calls: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def called(*args: object, **keys: object) -> Inner | None:
        calls.append((args, keys))
        return answer

    vars(inner)[name] = called
    result = getattr(base(inner), name)(**values)
    [(args, keys)] = calls
    bound = inspect.signature(declared).bind(None, *args, **keys).arguments
    assert {key: value for key, value in bound.items() if key != "self"} == values
    assert result is answer


def test_a_member_that_a_base_lacks_is_seen() -> None:
    class Grown(FileSegment, Protocol):
        def copy(self) -> None: ...

    with pytest.raises(KeyError, match="copy"):
        test_a_base_has_each_member_as_the_contract_declares_it(Grown, WrapperSegment, "copy")


class Both(MemoryProvider):
    """A provider that implements the optional protocols."""

    prices = Prices()

    def usage(self) -> Usage:
        return Usage(())

    def bind_metrics(self, metrics: Metrics) -> None: ...

    def probes(self, options: ProbeOptions) -> list[ProbeResult]:
        return []


def test_optional_protocols_are_found_below_any_number_of_wrappers() -> None:
    provider: Any = Both()
    wrapped = WrapperProvider(WrapperProvider(provider))
    assert find_layer(wrapped, MeteredProvider) is provider
    assert find_layer(wrapped, Probed) is provider
    assert find_layer(provider, Probed) is provider
    assert read_usage(wrapped) == Usage(())


def test_the_outermost_layer_with_an_optional_protocol_is_the_one() -> None:
    class Counts(WrapperProvider):
        prices = Prices(write=1)

        def usage(self) -> Usage:
            return Usage(())

        def bind_metrics(self, metrics: Metrics) -> None: ...

    outer: Any = Counts(Both())
    assert find_layer(WrapperProvider(outer), MeteredProvider) is outer


def test_an_optional_protocol_that_no_layer_has_is_none() -> None:
    assert find_layer(WrapperProvider(MemoryProvider()), MeteredProvider) is None
    assert read_usage(WrapperProvider(MemoryProvider())) is None


def test_what_open_returns_is_wrapped_by_the_hook() -> None:
    class Hooked(WrapperProvider):
        def wrap_segment(self, segment: FileSegment) -> FileSegment:
            return WrapperSegment(segment)

    inner = Inner()
    segment: Any = Hooked(inner).open("id", "listing")  # type: ignore[arg-type]
    assert segment.wrapped == (inner, "open", ("id", "listing"), {})
