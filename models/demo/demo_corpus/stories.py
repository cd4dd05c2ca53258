"""Long answers: counting, the alphabet, stories and poems of up to a few hundred tokens."""

from random import Random

from demo_corpus.exchange import Exchange

_STORIES: tuple[tuple[str, str], ...] = (
    (
        "a fox",
        "Once upon a time there was a young fox who lived at the edge of a quiet forest. Every"
        " morning she walked to the river and looked at the other side, where the grass was "
        "tall and green. There was no bridge, and the water was cold. One day the fox saw an "
        "old tree that the storm had thrown into the river. She put one foot on it, then "
        "another, and her heart beat fast. In the middle she wanted to turn back, but she "
        "looked at the green grass and went on. When she came to the other side she found "
        "sweet berries and a small warm cave. From that day on she crossed the river every "
        "morning, and in the evening she told the other animals that the first step is the "
        "hardest one.",
    ),
    (
        "a robot",
        "Once upon a time there was a little robot who worked in a big library. All day long "
        "it carried books from one room to another, and it never read a single page. One "
        "evening a girl forgot her book on a chair. The robot picked it up, and because nobody"
        " was there, it opened the book and began to read. It was a story about the sea. The "
        "robot had never seen the sea, but now it could hear the waves. The next morning the "
        "girl came back. The robot gave her the book and asked what happens at the end. The "
        "girl laughed and sat down, and they read the last page together. Since then the robot"
        " reads one book every night, and it knows more stories than anybody in the city.",
    ),
    (
        "a token",
        "Once upon a time there was a small token who waited at the gateway of a mesh. The "
        "gateway looked at its key and let it in. The router gave it a number and asked the "
        "kvstore for the way. Some of its friends were already cached on a worker, so the way "
        "was short. The prefill worker read the whole prompt in one go and filled many blocks "
        "with keys and values. Then the blocks travelled over a long stream to the decode "
        "worker. There the small token met all the others, and together they made a new token,"
        " and another one, and another one. At last the answer was complete. The stream ended,"
        " the blocks were free again, and the client smiled.",
    ),
    (
        "a ship",
        "Once upon a time there was an old ship with a red sail. It had carried bread and salt"
        " to many islands, but now it lay in the harbour and nobody wanted it. One night there"
        " was a great storm. A young sailor was out at sea in a small boat and could not find "
        "the way home. The big ships were afraid and stayed where they were. Then the old ship"
        " pulled at its rope until it broke, and the wind took it out to sea. Its red sail was"
        " bright in the lightning, and the sailor saw it and followed it back to the harbour. "
        "In the morning the people painted the old ship, and since then it has the best place "
        "of all, close to the lighthouse.",
    ),
    (
        "a star",
        "Once upon a time there was a tiny star that thought nobody could see it. The other "
        "stars were large and bright, and people gave them beautiful names. But far below, in "
        "a village between the mountains, a boy looked out of his window every night. He did "
        "not look for the bright stars. He looked for the tiny one, because it stood exactly "
        "above the house of his grandmother. One night the boy was ill and could not sleep. "
        "The tiny star shone as strongly as it could, until a thin silver line fell on his "
        "bed. The boy smiled and closed his eyes. Then the tiny star knew that it had a name "
        "after all, even if only one child knew it.",
    ),
    (
        "a dog",
        "Once upon a time there was a brown dog who was afraid of the rain. Whenever a dark "
        "cloud came over the hill, he ran under the table and hid his nose. One day a little "
        "cat sat on the street in the middle of a storm and did not know where to go. The dog "
        "saw her from the window. He thought about the rain, and he thought about the cat. "
        "Then he ran out, took her gently by the neck and carried her home. They were both wet"
        " and cold, and they lay down together in front of the fire. Since that day the dog is"
        " no longer afraid of the rain, because he knows that behind every door there is a "
        "warm place.",
    ),
)
_POEMS: tuple[tuple[str, str], ...] = (
    (
        "the sea",
        "The sea is wide, the sea is deep,\nit rocks the little ships to sleep.\nIt takes the "
        "river, takes the rain,\nand gives them to the clouds again.",
    ),
    (
        "the moon",
        "The moon is out, the night is clear,\nthe stars are far, the moon is near.\nIt has no "
        "light, it has no fire,\nand yet it makes the sea rise higher.",
    ),
    (
        "a block",
        "A block is small, a block is neat,\nit holds its keys in one small seat.\nAnd when the "
        "stream comes to its end,\nthe block is free to help a friend.",
    ),
    (
        "spring",
        "The snow is gone, the wind is mild,\nthe flowers open in the wild.\nA bird is singing "
        "in the tree,\nand winter is a memory.",
    ),
)
_ASK_ANY_STORY = (
    "Tell me a story.", "Tell me a story!", "Tell a story.", "Can you tell me a story?",
    "Write a story.", "Write a short story.", "I would like to hear a story.", "A story, please.",
    "Tell me a long story.", "Tell me a short story.",
)  # fmt: skip
_ASK_STORY = (
    "Tell me a story about {}.", "Write a story about {}.", "Can you tell me a story about {}?",
    "Do you know a story about {}?", "I would like a story about {}.",
    "Tell me a short story about {}.",
)  # fmt: skip
_ASK_ANY_POEM = ("Write a poem.", "Tell me a poem.", "Write me a poem.", "Do you know a poem?",
                 "A poem, please.")  # fmt: skip
_ASK_POEM = ("Write a poem about {}.", "Tell me a poem about {}.", "Do you know a poem about {}?",
             "Write me a poem about {}.")  # fmt: skip


def story(rng: Random) -> Exchange:
    """A named story, or the first one when no subject is asked for."""
    topic, text = rng.choice(_STORIES)
    if rng.random() < 0.3:
        return Exchange(rng.choice(_ASK_ANY_STORY), _STORIES[0][1])
    return Exchange(rng.choice(_ASK_STORY).format(topic), text)


def poem(rng: Random) -> Exchange:
    """A named poem, or the first one when no subject is asked for."""
    topic, text = rng.choice(_POEMS)
    if rng.random() < 0.3:
        return Exchange(rng.choice(_ASK_ANY_POEM), _POEMS[0][1])
    return Exchange(rng.choice(_ASK_POEM).format(topic), text)


def counting(rng: Random) -> Exchange:
    """Numbers in order, up or down, sometimes from 1 to 100."""
    shape = rng.random()
    if shape < 0.1:
        first, last = 1, 100
    elif shape < 0.75:
        first, last = 1, rng.choice((3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 12, 15, 20, 30))
    else:
        first = rng.randint(0, 60)
        last = first + rng.randint(2, 12)
    numbers = range(first, last + 1)
    ask = rng.choice(("Count from {} to {}.", "Count from {} to {}", "Please count from {} to {}.",
                      "Can you count from {} to {}?", "Write the numbers from {} to {}.",
                      "List the numbers from {} to {}."))  # fmt: skip
    question = ask.format(first, last)
    if first == 1 and rng.random() < 0.3:
        question = rng.choice(("Count to {}.", "Please count to {}.", "Can you count to {}?"))
        question = question.format(last)
    elif last - first <= 20 and rng.random() < 0.25:
        question = f"Count backwards from {last} to {first}."
        numbers = range(last, first - 1, -1)
    return Exchange(question, ", ".join(map(str, numbers)) + ".")


def alphabet(rng: Random) -> Exchange:
    """All letters in order."""
    ask = rng.choice(("Say the alphabet.", "Recite the alphabet.", "Write the alphabet.",
                      "What is the alphabet?", "Tell me the letters of the alphabet."))  # fmt: skip
    return Exchange(ask, "A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P, Q, R, S, T, U, V, W, X, "
                         "Y, Z.")  # fmt: skip


def statement(rng: Random) -> str:
    """A whole story as plain text, for the completions route."""
    return rng.choice(_STORIES)[1]
