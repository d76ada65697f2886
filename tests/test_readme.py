import pytest
import readme_help


@pytest.mark.parametrize("mark", readme_help.SECTIONS)
def test_the_readme_shows_what_the_program_says_of_itself(mark: str) -> None:
    assert readme_help.shown(mark) == readme_help.SECTIONS[mark](), "run: uv run python tests/readme_help.py"
