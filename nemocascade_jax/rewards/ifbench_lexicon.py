"""Word lists and spelling rules that the evaluation constraints of IFBench lean on."""

from __future__ import annotations

import re


def is_emoji(char: str) -> bool:
    """Returns whether one character is an emoji by itself."""
    code = ord(char)
    return any(first <= code <= last for first, last in EMOJI)


def syllables(word: str) -> int:
    """Returns the syllables of an English word in small letters, by its spelling; 0 with a digit.

    Groups of vowels, less a silent e or ed at the end, plus vowels that are spoken apart.
    """
    if re.search(r"\d", word):
        return 0
    if word in ODD_SPELLINGS:
        return ODD_SPELLINGS[word]
    spoken = SILENT.sub("", word)
    return max(1, len(VOWELS.findall(spoken)) + len(APART.findall(spoken)))


def is_verb(word: str) -> bool:
    """Returns whether a word is a form of a common verb; case does not count."""
    word = word.lower()
    if word in VERBS or word in IRREGULAR:
        return True
    return any(
        word.endswith(ending) and not VERBS.isdisjoint(_stems(word[: -len(ending)]))
        for ending in ("ing", "ed", "es", "s")
    )


def _stems(rest: str) -> set[str]:
    """Returns what a verb may have been before its ending: mak -> make, stopp -> stop, tri -> try."""
    doubled = {rest[:-1]} if rest[-2:-1] == rest[-1:] else set()
    return {rest, f"{rest}e", re.sub("i$", "y", rest)} | doubled


def _listed(words: str) -> tuple[str, ...]:
    return tuple(words.split())


VOWELS = re.compile("[aeiouy]+")
SILENT = re.compile(
    r"(?<=[^aeiouy])e$(?<![^aeiouy]le)|(?<=[^aeiouytd])ed$|(?<=[^aeiouycgsxz])es$"
    r"|(?<=[^aeiouy])e(?=(?:ly|ment|ful|less|ness|thing|times?|work)s?$)(?<!le)"
)
APART = re.compile(
    r"(?<![tscg])i[ao](?!u)|i[ue][mt]|(?<=[cs])io(?!n|u)|eo(?!u)|(?<![qg])ua|uou"
    r"|[aeiou]y(?=[aeiou])|ying|[aeou]ing|ism$"
)
ODD_SPELLINGS = {
    word: count
    for count, words in {
        1: "are there where here some come were one once eye tongue centre",
        2: "people every being science business evening quiet poem ocean create lion million",
        3: "area idea ideas serious previous usually reaction realize audience influence",
        4: "experience immediately especially",
    }.items()
    for word in words.split()
}
# Function words: what stands between the words that carry the meaning. Contractions come in pieces,
# as the pattern \w+ cuts them.
STOP_WORDS = frozenset(
    _listed("""
    i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she
    her hers herself it its itself they them their theirs themselves what which who whom this that
    these those am is are was were be been being have has had having do does did doing will should
    can just now a an the and but if or because as until while of at by for with about against
    between into through during before after above below to from up down in out on off over under
    again further then once here there when where why how all any both each few more most other some
    such no nor not only own same so than too very s t d ll m o re ve y ain aren couldn didn doesn
    don hadn hasn haven isn ma mightn mustn needn shan shouldn wasn weren won wouldn
    """)
)
PRONOUNS = frozenset(
    _listed("""
    i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his
    himself she her hers herself it its itself they them their theirs themselves
    """)
)
CONJUNCTIONS = frozenset(_listed("and but for nor or so yet"))
PERSON_NAMES = _listed("""
    Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander
    Amelia Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella
    Jacob Scarlett Nathan Victoria Elijah Layla Nicholas Audrey David Hannah Christopher Penelope
    Thomas Nora Andrew Aria Joseph Claire Ryan Stella Jonathan
    """)
# Capitals north of 45 degrees, from the north to the south, as IFBench has them.
NORTHERN_CAPITALS = _listed("""
    Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin
    Amsterdam Warsaw London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz
    Chisinau Bern Ljubljana Zagreb
    """)
VERBS = frozenset(
    _listed("""
    accept achieve act adapt add address adjust admit adopt advise afford agree aim allow analyze
    answer apologize appear apply appreciate approach argue arrange arrive ask assess assist assume
    attach attempt attend avoid bake be become begin believe blend boil break breathe bring build
    buy calculate call capture care carry catch cause celebrate change charge check choose clean
    clear climb close collect combine come compare complete compute conclude conduct confirm connect
    consider construct contact contain continue convert cook copy count cover create cross cut dance
    deal decide define deliver demand depend describe deserve design determine develop die discover
    discuss divide do download draw dream drink drive drop earn eat edit embrace emphasize enable
    encourage end engage enhance enjoy ensure enter establish evaluate examine exercise exist expand
    expect experience explain explore express extend face fail fall feel fight fill find finish fix
    focus fold follow force forget form gather generate get give go grab grow guess handle happen
    have hear help hide highlight hold hope identify ignore imagine implement improve include
    increase indicate inform insert install introduce invest invite involve join jump keep kill know
    laugh lead learn leave lend let lie lift limit list listen live look lose love maintain make
    manage mark master mean measure meet mention mix monitor move name navigate need note notice
    observe obtain offer open order organize paint pass pay perform pick place plan plant play pour
    practice pray prefer prepare present press prevent print produce promote propose protect prove
    provide pull purchase push put raise reach read realize receive recognize recommend record
    reduce refer reflect remain remember remind remove repeat replace report request require
    research respond rest return reveal review ride ring rise run save say search season secure see
    seek seem select sell send serve set share shift shop show shut simplify sing sit sleep solve
    sort speak specify spend stand start state stay step stir stop store strive study submit suggest
    support suppose surround swim take talk taste teach tell test thank think throw touch track
    train transform travel treat try turn understand unlock update upload use utilize verify view
    visit wait walk want wash watch wear welcome whisk win wish wonder work worry write yield
    """)
)
IRREGULAR = frozenset(
    _listed("""
    am are ate became been began bought broke brought built came can caught chose could did does
    done drank drawn drew driven drove eaten fallen fell felt flew forgot forgotten fought found
    gave given gone got grew grown had has heard held hid is kept knew known led left lost made may
    meant met might must paid ran rang read rode rose said sang sat saw seen sent shall shook should
    shown slept sold sought spent spoke spoken stood swam taken taught thought threw told took
    understood was went were will won wore would written wrote
    """)
)
EMOJI = tuple(
    (int(first, 16), int(last or first, 16))
    for first, _, last in (
        part.partition("-")
        for part in _listed("""
        a9 ae 203c 2049 2122 2139 2194-2199 21a9-21aa 231a-231b 2328 23cf 23e9-23f3 23f8-23fa 24c2
        25aa-25ab 25b6 25c0 25fb-25fe 2600-2604 260e 2611 2614-2615 2618 261d 2620 2622-2623 2626
        262a 262e-262f 2638-263a 2640 2642 2648-2653 265f-2660 2663 2665-2666 2668 267b 267e-267f
        2692-2697 2699 269b-269c 26a0-26a1 26a7 26aa-26ab 26b0-26b1 26bd-26be 26c4-26c5 26c8
        26ce-26cf 26d1 26d3-26d4 26e9-26ea 26f0-26f5 26f7-26fa 26fd 2702 2705 2708-270d 270f 2712
        2714 2716 271d 2721 2728 2733-2734 2744 2747 274c 274e 2753-2755 2757 2763-2764 2795-2797
        27a1 27b0 27bf 2934-2935 2b05-2b07 2b1b-2b1c 2b50 2b55 3030 303d 3297 3299 1f004 1f0cf
        1f170-1f171 1f17e-1f17f 1f18e 1f191-1f19a 1f201-1f202 1f21a 1f22f 1f232-1f23a 1f250-1f251
        1f300-1f321 1f324-1f393 1f396-1f397 1f399-1f39b 1f39e-1f3f0 1f3f3-1f3f5 1f3f7-1f4fd
        1f4ff-1f53d 1f549-1f54e 1f550-1f567 1f56f-1f570 1f573-1f57a 1f587 1f58a-1f58d 1f590
        1f595-1f596 1f5a4-1f5a5 1f5a8 1f5b1-1f5b2 1f5bc 1f5c2-1f5c4 1f5d1-1f5d3 1f5dc-1f5de 1f5e1
        1f5e3 1f5e8 1f5ef 1f5f3 1f5fa-1f64f 1f680-1f6c5 1f6cb-1f6d2 1f6d5-1f6d9 1f6dc-1f6e5 1f6e9
        1f6eb-1f6ec 1f6f0 1f6f3-1f6fc 1f7e0-1f7eb 1f7f0 1f90c-1f93a 1f93c-1f945 1f947-1f9ff
        1fa70-1fa7c 1fa80-1fac6 1fac8 1facc-1fadd 1fadf-1faeb 1faef-1fafa
        """)
    )
)
