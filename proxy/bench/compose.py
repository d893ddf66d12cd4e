"""Make the sentences of texts/: ours, always the same ones. `python -m bench.compose` writes the files again.

Seed-TTS' English texts take 4 to 5 s to say; so do these, with some spread. The sentences mean little, but they are
ordinary speech: names, numbers, questions, commas.
"""

from __future__ import annotations

import random
import string
from pathlib import Path

FOLDER = Path(__file__).parent / "texts"
SEED = 2026
ENGLISH, CHINESE = 1000, 250  # sentences
ENGLISH_CHARACTERS, CHINESE_CHARACTERS = (40, 86), (14, 26)  # shortest and longest

_ENGLISH_WORDS = {
    "who": (
        "my neighbour", "the old gardener", "our teacher", "the ticket inspector", "her cousin", "a young engineer",
        "the captain", "the baker", "his sister", "the night nurse", "a tired reporter", "the librarian",
        "my grandmother", "the bus driver", "a friendly stranger", "the project manager", "their lawyer",
        "the head cook", "a visiting doctor", "the lighthouse keeper",
    ),
    "did": (
        "repaired", "painted", "sold", "borrowed", "carried home", "wrapped up", "photographed", "forgot about",
        "looked for", "finally found", "cleaned", "measured", "described", "gave away", "hid", "bought",
    ),
    "thing": (
        "the broken clock", "a wooden ladder", "the blue bicycle", "an old map", "two heavy suitcases",
        "the garden chairs", "a silver teapot", "the kitchen radio", "a box of letters", "the spare keys",
        "three jars of honey", "a pair of boots", "the sewing machine", "the small telescope", "a bag of apples",
        "the wool blanket", "a stack of plates", "the front door", "an empty bottle", "the paper lantern",
    ),
    "place": (
        "behind the station", "near the harbour", "in the back garden", "on the third floor", "at the market",
        "under the bridge", "beside the river", "in the village hall", "across the street", "at the end of the lane",
        "in the cellar", "by the swimming pool", "outside the museum", "on the hill", "in the waiting room",
    ),
    "time": (
        "on Monday morning", "after lunch", "before sunrise", "late last night", "during the storm",
        "at half past six", "a week ago", "in early spring", "just after midnight", "on the first day of school",
        "two summers ago", "around noon", "before the guests arrived", "while it was raining",
    ),
    "reason": (
        "nobody had asked for it", "the rain had stopped at last", "the shop was about to close",
        "there was no room left inside", "the train was late again", "it looked better in the light",
        "the children were already asleep", "the price had gone up twice", "everyone else had gone home",
        "the lift was out of order", "winter was only a month away", "the music was far too loud",
    ),
    "number": ("seven", "twelve", "fifteen", "twenty", "thirty two", "forty", "sixty five", "ninety", "a hundred"),
    "counted": (
        "minutes", "kilometres", "visitors", "letters", "pages", "parcels", "chairs", "questions", "photographs",
    ),
    "quality": (
        "quieter", "much colder", "more expensive", "easier to find", "brighter", "rather smaller", "a little wider",
        "far more crowded", "better kept", "less dusty", "warmer", "more cheerful",
    ),
    "scene": (
        "the library", "the new cafe", "the coast road", "the museum garden", "our old flat", "the railway hotel",
        "the covered market", "the town square", "the upper valley", "the ferry terminal", "the school yard",
    ),
    "command": (
        "close the windows", "water the tomatoes", "write down the number", "turn off the oven", "lock the shed",
        "leave the umbrella", "feed the cat", "take the second exit", "keep the receipt", "check the timetable",
        "bring a warm coat", "speak a little slower",
    ),
    "opening": (
        "As far as I remember", "To our surprise", "If I am not mistaken", "Strangely enough", "As usual",
        "According to the letter", "For the third time this year", "Without saying a word", "In the end",
    ),
    "idea": (
        "the meeting would be moved", "we should start earlier", "the answer was in the second drawer",
        "the soup needed more salt", "nobody would notice the difference", "the road was closed ahead",
        "the letter had been lost", "the concert was sold out", "it was safer to wait", "the plan might work",
    ),
}  # fmt: skip
_ENGLISH = (
    "{who} {did} {thing} {place} because {reason}.",
    "{opening}, {who} {did} {thing} {place} {time}.",
    "{who} {did} {thing} {time}, although {reason}.",
    "Did you hear that {who} {did} {thing} {place}?",
    "Please {command} and {command2} before {who} comes back.",
    "Please {command}, since {who} will be here in {number} minutes.",
    "{scene} was {quality} than {scene2}, and {reason}.",
    "{scene} seemed {quality} {time}, when {who} arrived.",
    "It took {number} minutes until {who} {did} {thing}.",
    "There were {number} {counted} {place}, but {reason}.",
    "{who} was sure that {idea}, and {who2} agreed.",
    "{who} told us {time} that {idea}.",
    "When {who} came in, {who2} already knew that {idea}.",
    "{who} {did} {thing} {place}.",
    "{scene} was {quality} than {scene2}.",
    "I think {who} {did} {thing} {time}.",
    "There were {number} {counted} {place}.",
    "Why was {scene} so much {quality} {time}, do you think?",
    "{opening}, {idea}, so {who} {did} {thing}.",
    '"{command}," said {who}, "and don\'t forget that {idea}."',
)

_CHINESE_WORDS = {
    "who": (
        "老师", "邻居", "我妹妹", "那位医生", "司机师傅", "新来的同事",
        "爷爷", "店主", "小王", "管理员", "他的朋友",
    ),
    "did": ("修好了", "买了", "找到了", "忘记了", "收拾好了", "送来了", "卖掉了", "擦干净了", "借走了", "拍下了"),
    "thing": (
        "那把旧椅子", "两张车票", "厨房的灯", "一盒茶叶", "蓝色的自行车",
        "三本书", "院子里的梯子", "那封信", "一袋苹果",
    ),
    "place": ("在车站后面", "在河边", "在二楼", "在市场里", "在图书馆门口", "在桥下", "在公园里", "在办公室"),
    "time": ("昨天晚上", "今天早上", "下雨的时候", "上个星期", "天亮以前", "中午", "去年春天", "开会之前"),
    "reason": (
        "雨终于停了", "商店快要关门了", "火车又晚点了", "大家都回家了",
        "孩子们已经睡了", "价格又涨了", "屋里没有位置了",
    ),
    "number": ("七", "十二", "十五", "二十", "三十六", "八十"),
    "counted": ("封信", "张照片", "个苹果", "本书", "把钥匙"),
    "scene": ("新开的咖啡馆", "老城区", "海边的小路", "学校操场", "博物馆花园", "火车站广场"),
    "quality": ("安静", "热闹", "凉快", "干净", "明亮", "方便"),
    "idea": ("会议要改时间", "这条路走不通", "汤里少放了盐", "我们应该早点出发", "答案就在抽屉里", "音乐会的票卖完了"),
}  # fmt: skip
_CHINESE = (
    "{time}，{who}{place}{did}{thing}。",
    "因为{reason}，所以{who}{did}{thing}。",
    "{who}说{idea}，可是{reason}。",
    "{scene}比{scene2}{quality}得多，而且{reason}。",
    "过了{number}分钟，{who}才{did}{thing}。",
    "你知道{who}{time}{did}{thing}吗？",
    "桌上有{number}{counted}，{who}{time}才看到。",
    "{who}觉得{idea}，{who2}也同意。",
    "{time}，{scene}特别{quality}，因为{reason}。",
)


def compose(patterns: tuple[str, ...], words: dict[str, tuple[str, ...]], count: int, lengths: tuple[int, int],
            dice: random.Random) -> list[str]:  # fmt: skip
    """`count` different sentences whose number of characters is within `lengths`."""
    made: dict[str, None] = {}  # in order
    while len(made) < count:
        pattern = patterns[len(made) % len(patterns)]
        chosen: dict[str, str] = {}
        for name in sorted(field for _, field, _, _ in string.Formatter().parse(pattern) if field):
            taken = set(chosen.values())
            chosen[name] = dice.choice([word for word in words[name.rstrip("2")] if word not in taken])
        sentence = pattern.format(**chosen)
        start = len(sentence) - len(sentence.lstrip('"'))
        sentence = sentence[:start] + sentence[start].upper() + sentence[start + 1 :]
        if lengths[0] <= len(sentence) <= lengths[1]:
            made[sentence] = None
    return list(made)


def files() -> dict[str, list[str]]:
    """File name -> its lines."""
    return {
        "en.txt": compose(_ENGLISH, _ENGLISH_WORDS, ENGLISH, ENGLISH_CHARACTERS, random.Random(SEED)),
        "zh.txt": compose(_CHINESE, _CHINESE_WORDS, CHINESE, CHINESE_CHARACTERS, random.Random(SEED)),
    }


def main() -> None:
    """Write them."""
    for name, lines in files().items():
        (FOLDER / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
