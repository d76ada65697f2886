import readme_help


def test_the_readme_shows_the_help_that_the_program_prints() -> None:
    assert readme_help.current() == readme_help.section(), "run: uv run python tests/readme_help.py"
