import pytest
from readme_help import README


@pytest.mark.parametrize("mark", README.sections)
def test_the_readme_shows_what_the_program_says_of_itself(mark: str) -> None:
    assert README.shown(mark) == README.sections[mark](), "run: uv run python tests/readme_help.py"
