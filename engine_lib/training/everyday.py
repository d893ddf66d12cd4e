"""Everyday sentences by the thousand, out of patterns with slots. Knows words; knows neither speech nor models.

A pattern is a text with {slots}; each slot is filled from a list below or by one of the functions of numbers. Digits
stay digits: the teacher reads them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

LISTS = {
    "name": "Alice Bob Carol Daniel Emma Frank Grace Henry Irene Jack Karen Liam Maria Nathan Olivia Peter Rachel "
    "Sam Tina Victor Wendy James John Michael Sarah Anna Tom Lucy David Sophie George Helen Kevin Laura "
    "Martin Nina Oscar Paul Rose Simon Thomas Joe Kate Ben Mary Robert William Susan Linda Chris Alex Julia "
    "Mark Lisa Brian Eric Amy Jennifer Steven Andrew Nancy Patrick Ruth Matthew Claire Adam Ellen Jason "
    "Diana Philip Monica Gary Betty Edward Barbara Charles Margaret Richard Elizabeth Anthony Emily Jessica "
    "Hannah Ryan Max Leo Ella Mia Noah Ava Lily",
    "surname": "Smith Johnson Brown Miller Davis Wilson Taylor Anderson Clark Lewis Walker Hall "
    "Young King Wright Scott "
    "Green Baker Adams Nelson Carter Mitchell Roberts Turner Phillips Campbell Parker Evans Edwards Collins "
    "Stewart",
    "city": "London Paris Boston Chicago Seattle Denver Dallas Austin Toronto Sydney Berlin Madrid Rome Tokyo Dublin "
    "Vienna Oslo Prague Lisbon Athens Miami Portland Phoenix Houston Atlanta Amsterdam Brussels Geneva "
    "Oxford Manchester Philadelphia Detroit Baltimore Cleveland Nashville Montreal Vancouver Moscow Cairo "
    "Washington Orlando",
    "country": "America Canada Mexico France Germany Italy Spain England Ireland Scotland Sweden Norway Japan China "
    "India Brazil Australia Egypt Greece Portugal Austria Switzerland Poland Russia Turkey Kenya",
    "place": "school|work|church|town|the office|the hospital|the library|the station|the airport|the museum|"
    "the hotel|the restaurant|the park|the river|the mountains|the beach|the bridge|the market|the store|"
    "the bank|the gym|the post office|the city center|the movies|the zoo|the theater|the university|"
    "the garage|the lake|the farm|the bakery|the pharmacy|the supermarket|the swimming pool|"
    "the police station|the village|the island|the castle",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "month": "January February March April May June July August September October November December",
    "season": "spring summer autumn winter fall",
    "thing": "coffee tea water bread soup rice dinner breakfast lunch ticket room table book phone computer car "
    "bicycle train bus plane window door kitchen garden house movie song story letter message package "
    "meeting report project plan question answer problem idea keyboard screen camera clock chair shirt "
    "jacket umbrella apple orange cake sandwich key bag box bottle cup glass plate knife fork spoon lamp bed "
    "blanket pillow towel mirror carpet wall roof floor ceiling stove fridge oven printer battery cable "
    "radio television newspaper magazine picture painting map pencil pen paper envelope stamp coin wallet "
    "watch ring necklace coat dress skirt hat scarf glove sock shoe boot belt button ball guitar piano "
    "violin drum game puzzle toy doll gift candle flower tree plant leaf grass stone boat ship truck tent "
    "ladder hammer nail rope brush bucket basket fence gate engine tire ticket suitcase passport",
    "food": "apples oranges bananas grapes cherries strawberries potatoes tomatoes carrots onions beans peas corn "
    "rice pasta bread butter cheese eggs milk yogurt honey sugar salt pepper flour oil vinegar chicken beef "
    "pork fish shrimp salad soup pizza sandwiches pancakes cookies chocolate cake pie juice lemonade coffee "
    "tea water wine beer",
    "animal": "dog cat horse cow pig sheep goat chicken duck goose rabbit mouse rat bird eagle owl parrot fish shark "
    "whale dolphin turtle snake frog lion tiger bear wolf fox deer elephant giraffe monkey camel bee spider "
    "butterfly",
    "family": "mother father sister brother aunt uncle cousin grandmother grandfather son daughter wife husband nephew "
    "niece mom dad parents children kids",
    "person": "doctor teacher student friend neighbor nurse lawyer driver cook waiter manager boss engineer farmer "
    "painter singer writer actor dancer soldier pilot captain mechanic plumber carpenter gardener baker "
    "butcher dentist scientist secretary clerk policeman fireman mayor president artist musician guest "
    "customer stranger",
    "color": "red blue green yellow white black brown gray pink purple orange silver golden",
    "adj": "good bad big small new old young long short happy sad quick slow easy hard warm cold hot cool bright "
    "dark quiet loud clean dirty cheap expensive simple strange beautiful nice important interesting "
    "different heavy light empty full early late strong weak soft wonderful terrible perfect broken busy "
    "careful clever comfortable common dangerous delicious dry wet exciting famous fast free fresh friendly "
    "funny gentle great healthy honest huge hungry kind large lazy little lonely lovely lucky modern narrow "
    "wide noisy normal pleasant polite poor possible pretty proud rare ready real rich rough round safe "
    "serious sharp sick silly smooth special sudden sweet tall thick thin thirsty tiny tired ugly useful "
    "usual valuable violent wild wise wooden wrong afraid angry bored calm curious",
    "adverb": "quickly slowly quietly carefully easily happily suddenly finally usually often always never sometimes "
    "really almost probably certainly perfectly together again early late soon today outside inside upstairs "
    "twice",
    "verb": "buy find see need want like take bring open close clean fix move sell show check read write send keep "
    "change use carry catch choose cover cut draw drop eat drink fill finish follow forget get give hear "
    "help hide hit hold hurt improve leave lend lose love make measure miss notice offer paint pass pay plan "
    "prepare pull push put remember remove repair return save share shut spell start steal stop study teach "
    "tell throw touch try turn understand wash watch wear win wrap",
    "past": "bought found saw needed wanted liked took brought opened closed cleaned fixed moved sold showed checked "
    "read wrote sent kept changed used carried caught chose covered cut drew dropped filled finished forgot "
    "got gave heard helped hid hit held left lost loved made missed noticed painted paid pulled pushed "
    "remembered repaired returned saved shared started stole stopped studied threw touched tried turned "
    "washed watched wore won wrapped",
    "going": "walk run drive fly ride swim climb dance sing sleep travel work study wait rest cook shop play",
    "gerund": "walking running driving flying riding swimming climbing dancing singing sleeping traveling working "
    "studying waiting resting cooking shopping playing reading writing talking listening thinking laughing "
    "crying looking standing sitting eating drinking smiling building cleaning painting fishing camping "
    "skiing",
    "topic": "history music science art politics sports weather travel education health business technology language "
    "nature religion mathematics physics biology chemistry geography literature philosophy medicine "
    "photography",
    "feeling": "happy sad tired angry excited nervous hungry thirsty sick bored proud lonely afraid surprised worried "
    "sorry glad ready sure late busy confused relieved grateful disappointed curious",
    "hello": "Hello|Hi|Hey|Good morning|Good afternoon|Good evening|Welcome|Welcome back|Hi there|Hello there",
    "bye": "Goodbye|Good night|See you soon|See you tomorrow|See you later|Take care|Have a nice day|"
    "Have a good weekend|Bye for now|Talk to you later|Have a safe trip|Sleep well|Good luck",
    "thanks": "Thank you|Thanks|Thank you very much|Thanks a lot|Many thanks|Thank you so much",
    "reply": "Yes|No|Okay|Sure|Sorry|Well|Right|Of course|Maybe|Oh|Actually|Unfortunately|Fine|Great|Perfect|I see",
    "when": "today|tomorrow|yesterday|tonight|this morning|this afternoon|this evening|last night|last week|"
    "last month|last year|next week|next month|next year|every day|every morning|every week|right now|"
    "in a minute|in an hour|after dinner|before lunch|after work|on the weekend|at night|in the morning|"
    "all day|later|soon|once a week|during the holidays|in the middle of the night|a long time ago|"
    "as soon as possible|at the last minute",
    "where": "in the kitchen|in the garden|on the table|under the bed|behind the house|next to the door|at home|"
    "at work|at school|in the car|on the roof|near the window|in the street|upstairs|downstairs|outside|"
    "over there|in front of the building|across the street|around the corner|on the second floor|"
    "in the living room|at the end of the road|between the trees|on the left|on the right|in the corner|"
    "on the wall|in my pocket|by the river|on the shelf|in the drawer|at the bus stop|on the train|"
    "in the city|in the country|by the sea",
    "weather": "sunny cloudy rainy windy foggy snowy stormy hot cold warm cool freezing humid dry wet nice terrible",
    "ask": "Can you|Could you|Could you please|Would you|Would you please|Can you please|Will you|Do you want to|"
    "Do you think you could|Are you able to|Would you like to|Shall we|Should I|May I|Can I|Could I|Can we",
    "pron": "I you we they",
    "she": "he she",
    "poss": "my your his her our their",
    "modal": "can will must should could would might",
    "neg": "can't won't shouldn't couldn't wouldn't didn't don't",
    "unit": "miles kilometers meters feet inches pounds kilograms gallons liters minutes hours days weeks months "
    "years seconds pages steps people degrees percent points times dollars cents euros",
    "conj": "and but so because although when while before after until if since unless",
}
WORDS = {key: (value.split("|") if "|" in value else value.split()) for key, value in LISTS.items()}

ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
ORDINALS = [
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
    "fourteenth",
    "fifteenth",
    "sixteenth",
    "seventeenth",
    "eighteenth",
    "nineteenth",
    "twentieth",
]


def in_words(number: int) -> str:
    """A number from 0 to 999,999 as English says it."""
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10 - 2] + (f"-{ONES[number % 10]}" if number % 10 else "")
    if number < 1000:
        return f"{ONES[number // 100]} hundred" + (f" {in_words(number % 100)}" if number % 100 else "")
    return f"{in_words(number // 1000)} thousand" + (f" {in_words(number % 1000)}" if number % 1000 else "")


def _suffixed(day: int) -> str:
    suffix = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{suffix}"


def _number(rng: random.Random) -> str:
    number = rng.choice([rng.randint(2, 20), rng.randint(2, 99), rng.randint(100, 999), rng.randint(1000, 9999)])
    if rng.random() < 0.1:
        number = rng.choice([30, 40, 50, 60, 70, 80, 90, 100, 200, 300, 400, 500, 1000, 2000, 5000, 10000, 20000])
    return str(number) if rng.random() < 0.6 else in_words(number)


def _small(rng: random.Random) -> str:
    number = rng.randint(2, 12) if rng.random() < 0.6 else rng.randint(13, 60)
    return str(number) if rng.random() < 0.5 else in_words(number)


def _time(rng: random.Random) -> str:
    hour, minute = rng.randint(1, 12), rng.choice([*range(0, 60, 5), rng.randint(1, 59)])
    kind = rng.random()
    if kind < 0.4:
        return f"{hour}:{minute:02d}" if minute else f"{hour} o'clock"
    if kind < 0.6:
        return f"{in_words(hour)} o'clock"
    if kind < 0.8:
        return f"{rng.choice(['half past', 'a quarter past', 'a quarter to', 'ten past', 'five to'])} {in_words(hour)}"
    return f"{in_words(hour)} {in_words(minute)}" if minute > 9 else f"{in_words(hour)} in the morning"


def _price(rng: random.Random) -> str:
    dollars, cents = rng.choice([rng.randint(1, 20), rng.randint(1, 999)]), rng.choice([0, 50, 99, rng.randint(10, 95)])
    kind = rng.random()
    if kind < 0.4:
        return f"${dollars}.{cents:02d}" if cents else f"${dollars}"
    spoken = str(dollars) if rng.random() < 0.5 else in_words(dollars)
    return f"{spoken} dollars" + (f" and {cents if rng.random() < 0.5 else in_words(cents)} cents" if cents else "")


def _date(rng: random.Random) -> str:
    month, day, kind = rng.choice(WORDS["month"]), rng.randint(1, 28), rng.random()
    if kind < 0.35:
        return f"{month} {_suffixed(day)}"
    if kind < 0.5:
        return f"{month} {day}"
    if kind < 0.7:
        return f"the {ORDINALS[min(day, 20) - 1]} of {month}"
    return f"{month} {_suffixed(day)}, {_year(rng)}"


def _year(rng: random.Random) -> str:
    return str(rng.choice([rng.randint(1900, 1999), rng.randint(2000, 2030)]))


def _digits(rng: random.Random) -> str:
    spelled = rng.random() < 0.4
    digits = [rng.randint(0, 9) for _ in range(rng.randint(3, 8))]
    return " ".join(ONES[digit] if spelled else str(digit) for digit in digits)


def _ordinal(rng: random.Random) -> str:
    return rng.choice(ORDINALS) if rng.random() < 0.7 else _suffixed(rng.randint(1, 99))


def _percent(rng: random.Random) -> str:
    number = rng.randint(1, 100)
    return f"{number}%" if rng.random() < 0.5 else f"{number if rng.random() < 0.5 else in_words(number)} percent"


NUMBERS: dict[str, Callable[[random.Random], str]] = {
    "number": _number,
    "small": _small,
    "time": _time,
    "price": _price,
    "date": _date,
    "year": _year,
    "digits": _digits,
    "ordinal": _ordinal,
    "percent": _percent,
}

PATTERNS = """
The {thing} is very {adj}.|The {adj} {thing} is {where}.|The {thing} and the {thing} are {where}.
Please {verb} the {adj} {thing} before {time}.|Please {verb} the {thing} and {verb} the {thing}.
Please {verb} it {when}.|My name is {name} and I live in {city}.|My name is {name} {surname}.
I am {name}, and this is my {family} {name}.|I have {small} {thing}s and {number} {thing}s.
We need {food}, {food} and some {food}.|I like {food}, but I don't like {food}.
The meeting with {name} is on {day} at {time}.|The meeting starts at {time} and ends at {time}.
{hello}, {name}, how are you today?|{hello}, how are you doing?|{hello}, everyone.|{hello}, my name is {name}.
{hello}!|{bye}, {name}.|{bye}.|{bye}, and thank you for everything.|{thanks}, {name}.
{thanks} for the {adj} {thing}.|{thanks} for coming {when}.|{thanks} for your help with the {thing}.
{thanks}, that was very {adj}.|It is {time} in {city}.|It is already {time}.|Your number is {digits}.
The code is {digits}.|Call me at {digits}.|The total is {price}.|That will be {price}, please.
The {thing} costs {price}.|I paid {price} for this {thing}.|How much is the {color} {thing}?
How many {thing}s do you have?|How many people are {where}?|How far is it to {city}?
We will {verb} a {adj} {thing} in {month}.|{name} was born on {date}.|{name} was born in {city} in {year}.
{ask} {verb} the {thing} for me?|{ask} {verb} the {adj} {thing}?|{ask} {verb} my {thing} {when}?|{ask} help me?
Where is the {adj} {thing}?|Where is {place}?|Where are you going {when}?|Where did you {verb} that {thing}?
Did you {verb} my {thing}, {name}?|Did {name} {verb} the {thing} {when}?|Did you see {name} {when}?
Do you know {name}?|I think the {thing} is {adj}, but the {thing} is {adj}.|I think {name} is {feeling}.
I think we should {verb} the {thing}.|The train to {city} leaves at {time} from platform {small}.
The bus to {place} is {small} minutes late.|The flight to {city} leaves at {time} on {day}.
Flight {number} to {city} is now boarding.|My flight lands at {time}.|Today is {day}, {date}.|Tomorrow is {day}.
The party is on {date}.|We moved here in {month} of {year}.|See you on {day}.
The temperature in {city} is {small} degrees.|It is {weather} in {city} today.|It will be {weather} tomorrow.
The weather is {weather} and {weather}.|It was {weather} all day.|I hope it will be {weather} on {day}.
There are {number} people in the {thing}.|There is a {adj} {animal} {where}.
There are {small} {animal}s {where}.|There is {food} {where}.|There was a {adj} {thing} {where}.
There will be {food} and {food} after the meeting.|{name} and {name} went to {city} last {day}.
{name} and I are going to {place} {when}.|{name} went to {place} {when}.|{reply}, I {modal} {verb} the {thing}.
{reply}, we {neg} {verb} the {thing}.|{reply}, that is {adj}.|{reply}, I am {feeling}.
If it is {weather}, we can {verb} the {thing} {when}.|If you are {feeling}, there is some {food} {where}.
If you {verb} the {thing}, {name} will be {feeling}.|When the {thing} is {adj}, please {verb} it.
What is the {adj} way to {verb} a {thing}?|What is your {adj} {thing}?|What is the name of that {thing}?
What is {name} doing?|What time is it?|What time does the {thing} start?|What day is it today?
What did {name} say about the {thing}?|What would you like to {verb}?|What would you like to eat?
What happened to the {thing}?|What do you think about {topic}?|Why is the {thing} so {adj}?
Why did you {verb} the {thing}?|Why are you so {feeling}?|Why don't we {verb} the {thing}?|Who is {name}?
Who {past} my {thing}?|Who is going to {verb} the {thing}?|Whose {thing} is this?|Which {thing} is yours?
When will {name} be back?|When did you {verb} the {thing}?|When does the {place} open?|When is your birthday?
Have you ever been to {city}?|Have you seen my {thing}?|Have you read the {adj} {thing}?
Have you {past} the {thing} yet?|Is the {thing} {adj}?|Is there a {place} near here?|Is {name} at home?
Is this your {thing}?|Is it {weather} outside?|Are you {feeling}?|Are the {thing}s {where}?
Are you going to {place} {when}?|Are there any {food} left?|I {past} the {thing} {when}.
I {past} a {adj} {thing} for my {family}.|We {past} the {thing} {where}.|{name} {past} my {thing}.
My {family} {past} the {thing} {when}.|My {family} is {gerund} {where}.|My {family} is a {person} in {city}.
My {family} {name} is {small} years old.|My {family} always {past} the {adj} {thing}.
Her {family} works as a {person}.|The {person} {past} the {thing}.|The {person} asked about the {thing}.
The {person} told me to {verb} the {thing}.|The {person} is {gerund} {where}.|The {animal} is {gerund} {where}.
The {animal} {past} the {thing}.|The {animal} was {adj}.|{name} is {gerund} {where}.|{name} is {adj} and {adj}.
{name} likes {gerund} and {gerund}.|{name} is very {feeling} {when}.|{name} works at {place}.
{name} lives near {place}.|{name} is from {country}.|{name} speaks {adverb}.|{name} has a {adj} {animal}.
I want to {going} {where}.|I would like to {verb} a {thing}.|I would like some {food}, please.
I would like a {color} {thing}.|I need to {verb} my {thing} {when}.|I need {small} more {thing}s.
I have to {going} {when}.|I forgot to {verb} the {thing}.|I am {gerund} {where}.
I am {feeling} {conj} the {thing} is {adj}.|I am looking for {place}.|I am looking for a {adj} {thing}.
I was {gerund} {when}.|I was born in {year}.|I was {feeling} when {name} {past} the {thing}.
I usually {going} {when}.|We are {gerund} to {place}.|We were {feeling} {conj} {name} was {feeling}.
We have {small} {unit} left.|We had {food} for dinner.|They {past} {small} {thing}s {when}.
They are {gerund} {where}.|They live in a {adj} house near {place}.
He {past} his {thing}, and she {past} her {thing}.|She said that the {thing} was {adj}.
He is the {adj} {person} in town.|She is wearing a {color} {thing}.|He has {color} hair and a {color} {thing}.
She was {adverb} {gerund} {where}.|It takes {small} minutes to get to {place}.
It is {number} {unit} from {city} to {city}.|It is {percent} {adj}.|About {percent} of the {thing}s are {adj}.
{percent} of people like {food}.|Prices went up by {percent} in {year}.|The answer is {number}.
The number is {number}.|Page {number}, please.|Room {number} is on the {ordinal} floor.
Turn left at the {thing}.|Turn right after {place}.|Go straight for {small} {unit}, then turn left.
Take the {ordinal} street on the right.|This is a {adj} {thing}.|This is my {family}, {name}.
This is {name} speaking.|That is not my {thing}.|That was a {adj} idea.|These {thing}s are {adj}.
Those {color} {thing}s are {adj}.|This is the {ordinal} time that I {past} it.|That sounds {adj}.
Let's {verb} the {thing}.|Let's go to {place} {when}.|Let me {verb} the {thing}.|Let us {going} {when}.
Don't {verb} the {thing}.|Don't forget to {verb} the {thing}.|Don't be {feeling}.|Never {verb} a {adj} {thing}.
Be {adj}.|Be careful with the {thing}.|Please be {adj}.|Please wait {where}.|Please sit down.
Please call {name} at {time}.|You should {verb} your {thing}.|You can {verb} the {thing} {where}.
You look {feeling}.|You have {small} new messages.|You are {adj}.|You must {verb} the {thing} by {time}.
You need a {thing} to {verb} that.|Your {thing} is ready.|Your {thing} will be ready on {day}.
Your order will arrive in {small} days.|Your appointment is on {date} at {time}.
The {thing} {where} belongs to {name}.|The {color} {thing} is {adj}er than the {color} one.
The {thing} is full of {food}.|{adj} {thing}s are better than {adj} {thing}s.
{topic} is more {adj} than {topic}.|{topic} and {topic} are {adj}.|I am reading a book about {topic}.
We talked about {topic} and {topic}.|The {person} knows a lot about {topic}.
In {year}, {name} moved to {country}.|In {month}, the {thing}s are {adj}.|In {season}, we go to {place}.
{country} is a {adj} country.|{city} is a {adj} city in {country}.|The {season} in {country} is {weather}.
One, two, three, {digits}.|{digits}.|Dear {name}, {thanks} for your {thing}.|Mr. {surname} is {where}.
Mrs. {surname} {past} it.|Dr. {surname} will see you at {time}.|Ladies and gentlemen, welcome to {city}.
Attention, please. The {thing} is {adj}.|Happy birthday, {name}!|Congratulations, {name}!
Good luck with the {thing}!|What a {adj} {thing}!|How {adj}!|Welcome to {city}!|The {thing} fell on the {thing}.
A {adj} {animal} jumped over the {thing}.|The {animal} and the {animal} are {gerund}.|{poss} {thing} is {where}.
{poss} {family} {modal} {verb} it.|{pron} {modal} {verb} the {thing} {when}.|{pron} {neg} {verb} it.
{she} {past} the {thing} {adverb}.|{she} is {adverb} {adj}.|{pron} {adverb} {verb} the {thing}.
{she} was {gerund} {when}.|The quick {color} {animal} jumps over the lazy {animal}.|{name}'s {thing} is {adj}.
The {person}'s {thing} was {adj}.|Sorry, I {neg} {verb} it.|Sorry, the {thing} is {adj}.
Excuse me, where is {place}?|Excuse me, is this {place}?|Set an alarm for {time}.
Remind me to {verb} the {thing} at {time}.|Turn on the {thing}.|Turn off the {thing} {where}.
Play the {adj} song.|Read the {adj} message from {name}.|Send a message to {name}.|Add {food} to the list.
{conj} {name} {past} the {thing}, we were {feeling}.|The {thing} was {adj} {conj} {name} {past} it.
"""
ALL_PATTERNS = [pattern for line in PATTERNS.strip().splitlines() for pattern in line.split("|")]
SLOT = re.compile(r"\{(\w+)\}")


def sentence(rng: random.Random) -> str:
    """One sentence, now and then two or three."""

    def fill(slot: re.Match[str]) -> str:
        key = slot.group(1)
        return NUMBERS[key](rng) if key in NUMBERS else rng.choice(WORDS[key])

    said = SLOT.sub(fill, rng.choice(ALL_PATTERNS))
    said = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", said)
    return said[0].upper() + said[1:]
