from collections.abc import Iterator
from functools import cache

import pytest

from scaler.reporting.page import rendering


@pytest.fixture(scope="session", autouse=True)
def _templates_are_compiled_once() -> Iterator[None]:
    """A process has one page, and these tests have hundreds; compiling takes longer than most of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendering, "environment", cache(rendering.environment))
        yield
