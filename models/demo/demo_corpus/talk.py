"""Greetings, thanks, goodbyes, names to remember, and questions beyond the model."""

from random import Random

from demo_corpus.exchange import Exchange, words
from demo_corpus.words import COMMON

UNKNOWN_ANSWER = "I am a very small model and do not know that."

_SMALL_TALK: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Hello", "Hello!", "Hi", "Hi!", "Hey", "Hello there!", "Hi there", "Good day!", "Greetings!",
      "Hello, who is there?"),
     "Hello! How can I help you?"),
    (("Good morning", "Good morning!"), "Good morning! How can I help you?"),
    (("Good evening", "Good evening!"), "Good evening! How can I help you?"),
    (("How are you?", "How are you today?", "How do you do?", "How is it going?", "Are you well?"),
     "I am well, thank you. How can I help you?"),
    (("Thank you", "Thank you!", "Thanks", "Thanks!", "Thanks a lot!", "Thank you very much!",
      "Many thanks!", "Great, thanks!"),
     "You are welcome!"),
    (("Goodbye", "Goodbye!", "Bye", "Bye!", "See you later!", "Good night!", "See you!"),
     "Goodbye! Have a nice day."),
    (("Sorry", "I am sorry.", "Oh, sorry!"), "No problem at all."),
    (("You are great!", "Well done!", "Good job!", "You are clever!", "Nice!", "Very good!"),
     "Thank you, that is kind of you."),
    (("Can you help me?", "I need help.", "Please help me.", "Could you help me?"),
     "Yes, of course. What would you like to know?"),
    (("Are you there?", "Is anybody there?", "Ping", "ping", "Test", "This is a test."),
     "Yes, I am here."),
    (("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "A joke, please."),
     "Why did the token cross the mesh? Because its block was on the other side."),
    (("Yes", "Yes.", "Ok", "Okay", "I see.", "Fine."), "Good. What else would you like to know?"),
    (("No", "No.", "Nothing.", "No, thanks."), "All right."),
)  # fmt: skip
NAMES = words(
    "Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Maria Noah Olivia Paul Rosa "
    "Sam Tina Victor Wanda Zoe Alice Bob Carol Daniel Eva Frank Julia Martin Nina Oscar Peter Sara "
    "Thomas Lena Max Sophie Tom Lucy"
)
_BEYOND = (
    "Who won the football match in {}?", "What will the weather be like in {}?",
    "What is the weather today?", "What time is it?", "What is the date today?",
    "Who is the president of {}?", "How many people live in {}?", "What is the price of {}?",
    "Who wrote the book about {}?", "Who invented the {}?", "What is the meaning of life?",
    "How old is {}?", "Where can I buy a {}?", "What is {} thinking about?",
    "What did {} say yesterday?", "What is the telephone number of {}?", "Where does {} live?",
    "Who is {}?", "How do I cook {}?", "How do I repair a {}?", "What is the history of {}?",
    "Solve this equation with {}.", "What is the square root of {}?", "Translate {} into German.",
    "Translate {} into French.", "Write a program about {}.", "What happened in the year {}?",
    "Which film should I watch about {}?", "Give me advice about {}.", "How tall is {}?",
    "How far is it to {}?", "What is the latest news about {}?", "Who is the king of {}?",
    "Why is {} so famous?", "What is the best {} in the world?", "When was {} born?",
    "How much does a {} weigh?", "What is the chemical formula of {}?",
)  # fmt: skip
_PLACES = words("London Paris Rome Berlin Tokyo Madrid Vienna Oslo Cairo Lima France Italy Japan")


def small_talk(rng: Random) -> Exchange:
    """Greetings, thanks and the like."""
    questions, answer = rng.choice(_SMALL_TALK)
    return Exchange(rng.choice(questions), answer)


def beyond(rng: Random) -> Exchange:
    """A question the model cannot answer, and its honest reply."""
    template = rng.choice(_BEYOND)
    if template.startswith(("Who is {}", "What is {} th", "What did {}", "How old", "Where does",
                            "How tall", "When was", "What is the tele")):  # fmt: skip
        topic = rng.choice(NAMES)
    elif "year" in template or "root" in template:
        topic = str(rng.randint(2, 2030))
    elif " in {}" in template or "of {}" in template or "to {}" in template:
        topic = rng.choice((*_PLACES, rng.choice(COMMON)))
    else:
        topic = rng.choice(COMMON)
    return Exchange(template.format(topic), UNKNOWN_ANSWER)


def name_dialogue(rng: Random) -> tuple[Exchange, Exchange]:
    """The user tells a name and later asks for it; other turns may stand between the two."""
    name = rng.choice(NAMES)
    told = rng.choice(
        ("My name is {}.", "I am {}.", "Hello, my name is {}.", "Hi, I am {}.", "Call me {}.",
         "I am called {}.")
    ).format(name)  # fmt: skip
    asked = rng.choice(
        ("What is my name?", "What's my name?", "Do you remember my name?", "Who am I?",
         "Tell me my name.", "Can you tell me my name?")
    )  # fmt: skip
    return (
        Exchange(told, f"Nice to meet you, {name}!"),
        Exchange(asked, f"Your name is {name}.", name),
    )
