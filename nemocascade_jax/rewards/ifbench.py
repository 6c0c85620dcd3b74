"""The 58 constraints of IFBench, for evaluation: id -> (arguments, checker) (paper 5.1).

Here are the counts, ratios, words and sentences; layouts and the tasks with one fixed answer are in
ifbench_shapes.py. Differences from the registry are listed in docs/instruction_following.md.
"""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter

from nemocascade_jax.rewards import ifbench_lexicon, ifbench_shapes, language, more_constraints
from nemocascade_jax.rewards.arguments import COUNT, NATURAL, TEXT, WORD, Constraint

EDGE = string.punctuation + " "
WITHOUT_MARKS = str.maketrans("", "", string.punctuation)
PRIMES = frozenset(n for n in range(2, 100) if all(n % d for d in range(2, n)))


def _words(text: str) -> list[str]:
    """Returns the words with every ASCII mark taken out of them: don't is dont."""
    return text.translate(WITHOUT_MARKS).split()


def word_count_range(answer: str, min_words: int, max_words: int) -> bool:
    return min_words <= language.count_words(answer) <= max_words


def unique_word_count(answer: str, N: int) -> bool:
    return len({word.strip(EDGE) for word in answer.lower().split()} - {""}) >= N


def conjunctions(answer: str, small_n: int) -> bool:
    found = {word.strip(EDGE) for word in answer.lower().split()}
    return len(found & ifbench_lexicon.CONJUNCTIONS) >= small_n


def person_names(answer: str, N: int) -> bool:
    """Names of the list count where they are a part of the text; their case counts."""
    return sum(1 for name in ifbench_lexicon.PERSON_NAMES if name in answer) >= N


def numbers(answer: str, N: int) -> bool:
    """There are exactly N runs of digits once marks are out: 3.14 is one."""
    return len(re.findall(r"\d+", answer.translate(WITHOUT_MARKS))) == N


def punctuation(answer: str) -> bool:
    """Has . , ! ? ; : beside an interrobang, whose own two marks do not count."""
    pair = next((mark for mark in ("?!", "!?") if mark in answer), "")
    if not pair and "‽" not in answer:
        return False
    rest = answer.replace(pair, "", 1) if pair else answer
    return set(".,!?;:") <= set(rest)


def words_japanese(answer: str, N: int) -> bool:
    """Every N-th word that is more than marks or digits holds a Japanese character."""
    nth = (word.strip(EDGE) for word in answer.split()[N - 1 :: N])
    return all(JAPANESE.search(word) for word in nth if word and not word.isdigit())


def pronouns(answer: str, N: int) -> bool:
    found = _words(answer.lower().replace("/", " "))
    return sum(1 for word in found if word in ifbench_lexicon.PRONOUNS) >= N


def keywords_multiple(answer: str, **keywords: str) -> bool:
    """The five keywords are parts of the text 1, 2, 3, 5 and 7 times, ignoring case."""
    text = answer.lower()
    return all(text.count(keywords[key].lower()) == times for key, times in TIMES.items())


def stop_words(answer: str, percentage: int) -> bool:
    words = re.findall(r"\w+", answer.lower())
    stops = sum(1 for word in words if word in ifbench_lexicon.STOP_WORDS)
    return bool(words) and 100 * stops <= percentage * len(words)


def sentence_type(answer: str) -> bool:
    """Two sentences end in a dot for each that ends in a question mark, of which there is one."""
    ends = _sentence_ends(answer)
    return ends["."] == 2 * ends["?"] > 0


def sentence_balance(answer: str) -> bool:
    """As many sentences end in a dot as in a question mark and in an exclamation mark."""
    ends = _sentence_ends(answer)
    return ends["."] == ends["?"] == ends["!"] > 0


def _sentence_ends(answer: str) -> Counter[str]:
    return Counter(sentence[-1:] for sentence in language.rule_sentences(answer))


def overlap(answer: str, reference_text: str, percentage: int) -> bool:
    """Of the answer's distinct runs of three characters, percentage +- 2 are in the reference."""
    ours, theirs = _trigrams(answer), _trigrams(reference_text)
    share = 100 * len(ours & theirs) / len(ours) if ours else -100.0
    return abs(share - percentage) <= 2


def _trigrams(text: str) -> set[str]:
    return {text[start : start + 3] for start in range(len(text) - 2)}


def sentence_words(answer: str) -> bool:
    """Three different sentences of as many characters each."""
    sentences = language.rule_sentences(answer)
    lengths = {len(sentence) for sentence in sentences}
    return len(sentences) == len(set(sentences)) == 3 and len(lengths) == 1


def alphabet(answer: str) -> bool:
    """Each word begins with the letter of the alphabet after the one before, a after z."""
    firsts = [word[0].lower() for word in _words(answer)]
    places = [string.ascii_lowercase.find(first) for first in firsts]
    follow = all((one + 1) % 26 == next for one, next in itertools.pairwise(places))
    return bool(places) and min(places) >= 0 and follow


def vowel(answer: str) -> bool:
    """One paragraph with at most three of the five vowels."""
    return "\n" not in answer.strip() and len(set("aeiou") & set(answer.lower())) <= 3


def consonants(answer: str) -> bool:
    """Each word has two consonants side by side."""
    return all(CLUSTER.search(word) for word in answer.lower().split())


def palindrome(answer: str) -> bool:
    words = _words(answer.lower())
    return sum(1 for word in words if len(word) >= 5 and word == word[::-1]) >= 10


def prime_lengths(answer: str) -> bool:
    return all(len(word) in PRIMES for word in _words(answer))


def start_verb(answer: str) -> bool:
    """The first word is a form of a common verb."""
    match = re.search(r"[^\W\d_]+", answer.split()[0])
    return bool(match) and ifbench_lexicon.is_verb(match.group())  # type: ignore[union-attr]


def repeats(answer: str, small_n: int) -> bool:
    return max(Counter(_words(answer.lower())).values(), default=0) <= small_n


def odd_even_syllables(answer: str) -> bool:
    parities = [ifbench_lexicon.syllables(word) % 2 for word in _words(answer.lower())]
    return all(one != next for one, next in itertools.pairwise(parities))


def last_first(answer: str) -> bool:
    """The last word of each sentence is the first of the next, ignoring case and marks outside."""
    pieces = [sentence.lower().strip(EDGE).split() for sentence in language.rule_sentences(answer)]
    if len(pieces) > 1 and not all(pieces):
        return False
    return all(one[-1] == next[0] for one, next in itertools.pairwise(pieces))


def paragraph_last_first(answer: str) -> bool:
    """Each line that is not blank begins and ends with one word, ignoring case."""
    lines = [line.lower() for line in answer.split("\n") if line.strip()]
    words = [line.strip().strip(EDGE).split() for line in lines]
    return all(line and line[0] == line[-1] for line in words)


def no_consecutive(answer: str) -> bool:
    firsts = [word[0] for word in _words(answer.lower())]
    return all(one != next for one, next in itertools.pairwise(firsts))


def words_position(answer: str, keyword: str) -> bool:
    """The second token and the second to last are the keyword; its case counts."""
    tokens = language.tokens(answer)
    return len(tokens) > 1 and tokens[1] == tokens[-2] == keyword


def alliteration_increment(answer: str) -> bool:
    """Each sentence has more words in alliteration than the one before."""
    counts = [_alliterating(sentence) for sentence in language.rule_sentences(answer)]
    return all(one < next for one, next in itertools.pairwise(counts))


def _alliterating(sentence: str) -> int:
    """Returns how many words stand beside one with the same first character."""
    words = (word.lstrip(EDGE) for word in sentence.lower().split())
    runs = (len(list(run)) for _, run in itertools.groupby(word[0] for word in words if word))
    return sum(run for run in runs if run > 1)


def sentence_keyword(answer: str, word: str, N: int) -> bool:
    """Sentence N has the word as a part of it, ignoring case."""
    sentences = language.rule_sentences(answer)
    return len(sentences) >= N and word.lower() in sentences[N - 1].lower()


def sentence_increment(answer: str, small_n: int) -> bool:
    """Each sentence has exactly small_n more words than the one before."""
    counts = [len(_words(sentence)) for sentence in language.rule_sentences(answer)]
    return all(next - one == small_n for one, next in itertools.pairwise(counts))


def _range_is_there(min_words: int, max_words: int) -> str:
    return "" if min_words <= max_words else f"min_words {min_words} is more than {max_words}"


JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
CLUSTER = re.compile("[bcdfghjklmnpqrstvwxyz]{2}")
TIMES = {"keyword1": 1, "keyword2": 2, "keyword3": 3, "keyword4": 5, "keyword5": 7}

IFBENCH: dict[str, Constraint] = {
    "count:word_count_range": Constraint(
        word_count_range, {"min_words": NATURAL, "max_words": NATURAL}, _range_is_there
    ),
    "count:unique_word_count": Constraint(unique_word_count, {"N": NATURAL}),
    "count:conjunctions": Constraint(conjunctions, {"small_n": NATURAL}),
    "count:person_names": Constraint(person_names, {"N": NATURAL}),
    "count:numbers": Constraint(numbers, {"N": NATURAL}),
    "count:punctuation": Constraint(punctuation, {}),
    "count:words_japanese": Constraint(words_japanese, {"N": COUNT}),
    "count:pronouns": Constraint(pronouns, {"N": NATURAL}),
    "count:keywords_multiple": Constraint(keywords_multiple, dict.fromkeys(TIMES, WORD)),
    "ratio:stop_words": Constraint(stop_words, {"percentage": NATURAL}),
    "ratio:sentence_type": Constraint(sentence_type, {}),
    "ratio:sentence_balance": Constraint(sentence_balance, {}),
    "ratio:overlap": Constraint(overlap, {"reference_text": TEXT, "percentage": NATURAL}),
    "ratio:sentence_words": Constraint(sentence_words, {}),
    "words:alphabet": Constraint(alphabet, {}),
    "words:vowel": Constraint(vowel, {}),
    "words:consonants": Constraint(consonants, {}),
    "words:palindrome": Constraint(palindrome, {}),
    "words:prime_lengths": Constraint(prime_lengths, {}),
    "words:start_verb": Constraint(start_verb, {}),
    "words:repeats": Constraint(repeats, {"small_n": COUNT}),
    "words:odd_even_syllables": Constraint(odd_even_syllables, {}),
    "words:last_first": Constraint(last_first, {}),
    "words:paragraph_last_first": Constraint(paragraph_last_first, {}),
    "words:no_consecutive": Constraint(no_consecutive, {}),
    "words:keywords_specific_position": Constraint(
        more_constraints.keyword_specific_position, {"keyword": WORD, "n": COUNT, "m": COUNT}
    ),
    "words:words_position": Constraint(words_position, {"keyword": WORD}),
    "sentence:alliteration_increment": Constraint(alliteration_increment, {}),
    "sentence:keyword": Constraint(sentence_keyword, {"word": WORD, "N": COUNT}),
    "sentence:increment": Constraint(sentence_increment, {"small_n": NATURAL}),
    **ifbench_shapes.SHAPES,
}
