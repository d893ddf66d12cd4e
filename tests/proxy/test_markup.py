"""Case 46: tags of SSML are dropped, comparisons are spoken, and it doesn't matter how the text is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.markup import LONGEST, TagFilter, without_tags

PARTS = [
    "<",
    ">",
    "/",
    "speak",
    "s",
    "brea",
    "break",
    "say-as",
    "amazon:",
    "x",
    " ",
    "\n",
    "=",
    '"',
    "'",
    "a",
    "?xml",
    "?",
]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=30).map("".join) | st.text(max_size=40)


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("<speak>Hi <break time='1s'/> you</speak>", "Hi you "),
        ("One.<break/>Two.", "One. Two."),
        (
            '<?xml version="1.0"?>\n<speak version="1.1" xml:lang="en-US">\n <p><s>A b.</s><s>C.</s></p>\n</speak>',
            "A b. C. ",
        ),
        ('<prosody rate="slow" pitch="+10%">slow</prosody>ly', "slowly"),
        ("It costs <say-as interpret-as='currency'>$5</say-as>.", "It costs $5."),
        ("<AMAZON:effect name = 'whispered' >psst</Amazon:Effect >", "psst"),
        ('<mstts:express-as style="sad">oh</mstts:express-as>', "oh"),
    ],
)
def test_case_46_tags_are_dropped(text: str, spoken: str) -> None:
    assert without_tags(text) == spoken


@pytest.mark.parametrize(
    "text",
    [
        "a < b and c > d",
        "a<b and c>d",
        "if x <s and y> z",
        "1 <2, 3> 2, <3 you",
        "<b>bold</b> <notatag/> < break> <break time=1s>",
        "vector<int> v; <|im_end|>",
        "the end is <spea",
        "<",
        "< speak>",
        "&lt;speak&gt;",
        f"<break time='{'x' * LONGEST}'/>",
    ],
)
def test_case_46_what_is_no_tag_is_text(text: str) -> None:
    assert without_tags(text) == text


@given(TEXTS, st.lists(st.integers(0, 200), max_size=5))
def test_any_cut_gives_what_the_whole_gives(text: str, cuts: list[int]) -> None:
    tags = TagFilter()
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [tags.feed(text[begin:end]) for begin, end in itertools.pairwise(places)]
    assert "".join(pieces) + tags.finish() == without_tags(text)


@given(st.sampled_from(["<s a='", "<", "<break ", "<s a=''", "<amazon:x "]), st.sampled_from([1, 7, 5000]))
def test_a_text_full_of_beginnings_is_read_in_bounded_time(unit: str, size: int) -> None:
    text = unit * (20_000 // len(unit))
    tags = TagFilter()
    pieces = [tags.feed(text[begin : begin + size]) for begin in range(0, len(text), size)]
    assert "".join(pieces) + tags.finish() == text
