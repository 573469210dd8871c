#!/usr/bin/env python3
"""Writes chat.json: small chats as the published chat templates of model families write them, with the ids and the masks
of answers that transformers and tokenizers give. Needs transformers, tokenizers and jinja2:

    python tests/data/make_chat_golden.py            (tests/data/chat.json)

A mask is computed from the offsets of the tokens: the answer to a chat's first n messages begins where the template's
text of these messages with a generation prompt ends, and ends behind the next end token.
"""

import datetime
import json
import pathlib

import transformers.utils.chat_template_utils as chat_template_utils
from chat_templates import TEMPLATES
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).resolve().parent


class ReleaseDay(datetime.datetime):
    """strftime_now() of a template: the day that docs/chat.md names."""

    @classmethod
    def now(cls, tz=None):
        return cls(2025, 7, 8)


chat_template_utils.datetime = ReleaseDay

QUESTION = "What is 12 * 34, and why?"
ANSWER = "It is 408: 12 * 34 = 12 * 30 + 12 * 4."
CODE = "def f(x):\n    return x + 1  # caf\u00e9 \u2603 \U0001f600\n"


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def system(content):
    return {"role": "system", "content": content}


def tool(content):
    return {"role": "tool", "content": content}


CHATS = {
    "short": [user(QUESTION), assistant(ANSWER)],
    "system": [system("You are terse."), user(QUESTION), assistant(ANSWER)],
    "turns": [user("Hi"), assistant("Hello! How can I help?"), user("Write code."), assistant(CODE), user("Thanks"),
              assistant("You are welcome.")],
    "spaces": [system(" \n Be kind.\u3000 "), user("  two \n\n"), assistant("\n\n  lines\n\nhere \u00a0\n"), user("\tok"),
               assistant(" yes ")],
    "question": [system("Be brief."), user("1"), assistant("one"), user("2?")],
    "lone question": [user(CODE)],
    "thinking": [user("Hard?"), assistant("<think>\nLet me see.\n\n</think>\n\nNo."), user("Really?"),
                 assistant("<think>\nHm, 2 + 2.\n</think>\n\nReally.")],
}
MORE = {
    "no_think": [system("Answer fast. /no_think"), user("Now?"), assistant("Yes.")],
    "think": [system("/think"), user("Now?"), assistant("\nYes.")],
    "override": [system("/system_override You are a cat. "), user("Who?"), assistant("A cat.")],
    "no_think question": [system("/no_think"), user("Now?")],
    "late system": [user("a"), system("be b"), assistant("c")],
    "tools": [user("Weather?"), assistant("Looking."), tool('{"t": 3, "s": "caf\u00e9\\n"}'), tool("wind 4"),
              assistant("3 degrees.")],
    "tool last": [user("Weather?"), assistant("Looking."), tool("rain")],
    "answers in a row": [user("Weather?"), assistant("<think>\nfirst\n</think>\nLooking."), assistant("Rain.")],
}
COMMON = list(CHATS)
NO_THINKING = [name for name in COMMON if name != "thinking"]

CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA3 = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
          "<|python_tag|>"]
LLAMA2 = ["<unk>", "<s>", "</s>"]
MISTRAL = LLAMA2 + ["[INST]", "[/INST]"]
TOOLS = ["late system", "tools", "tool last"]
THINK = ["<think>", "</think>"]  # added tokens that are not special

# Family -> format, template, kind of vocabulary, special tokens, other added tokens, begin, end, chats.
FAMILIES = {
    "chatml": ("chatml", "chatml", "bytes", CHATML, [], None, "<|im_end|>", COMMON + TOOLS),
    "qwen2": ("chatml", "qwen2", "bytes", CHATML, [], None, "<|im_end|>", COMMON + TOOLS),
    "qwen2.5": ("chatml", "qwen2.5", "nfc", CHATML, ["<tool_response>"], None, "<|im_end|>", COMMON + TOOLS),
    "qwen3": ("chatml", "qwen3", "nfc", CHATML, THINK, None, "<|im_end|>", COMMON + TOOLS + ["answers in a row"]),
    "smollm2": ("chatml", "smollm2", "bytes", CHATML, [], "<|im_start|>", "<|im_end|>", COMMON + ["late system"]),
    "smollm3": ("smollm3", "smollm3", "bytes", LLAMA3[:2] + CHATML[1:], THINK, None, "<|im_end|>",
                COMMON + ["no_think", "think", "override", "no_think question", "tools", "tool last"]),
    "llama2": ("llama2", "llama2", "spaces", LLAMA2, [], "<s>", "</s>", NO_THINKING),
    "llama3": ("llama3", "llama3", "bytes", LLAMA3, [], "<|begin_of_text|>", "<|eot_id|>", COMMON + TOOLS),
    "llama3.1": ("llama3", "llama3.1", "bytes", LLAMA3, [], "<|begin_of_text|>", "<|eot_id|>", COMMON + TOOLS),
    "mistral-v1": ("mistral", "mistral-v1", "spaces", LLAMA2, [], "<s>", "</s>", NO_THINKING),
    "mistral-v3": ("mistral", "mistral-v3", "marks", MISTRAL, [], "<s>", "</s>", NO_THINKING),
    "mistral-v3-tekken": ("mistral", "mistral-v3-tekken", "bytes", MISTRAL, [], "<s>", "</s>", NO_THINKING),
}


def texts():
    for chat in list(CHATS.values()) + list(MORE.values()):
        for message in chat:
            yield message["content"]
    yield "user assistant system [INST] [/INST] <<SYS>> <</SYS>> ] 's 're answer question the a is of and to in it you"


def bytes_vocabulary(tokens, normalizer):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=tokens, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


def spaces_vocabulary(tokens):
    """As Llama 2's: spaces are U+2581, one of them is put in front, unknown characters become bytes."""
    spaces = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    as_bytes = [f"<0x{value:02X}>" for value in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=tokens + as_bytes, show_progress=False, min_frequency=2,
                                  limit_alphabet=60)
    tokenizer.train_from_iterator(texts(), trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:len(tokens)]
    content["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    return tokenizer


def marks_vocabulary(tokens):
    """The same in the newer way: the space in front comes from the pre-tokenizer, and only at the start of all text."""
    tokenizer = spaces_vocabulary(tokens)
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def make_tokenizer(kind, special, added):
    if kind == "spaces":
        tokenizer = spaces_vocabulary(special)
    elif kind == "marks":
        tokenizer = marks_vocabulary(special)
    else:
        tokenizer = bytes_vocabulary(special, normalizers.NFC() if kind == "nfc" else None)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    return tokenizer


def span_of_answer(render, chat, index, text, end):
    prefix = render(chat[:index], True)
    assert text.startswith(prefix), (prefix, text)
    return len(prefix), text.index(end, len(prefix)) + len(end)


def mask_of(offsets, spans):
    def is_answer(begin, end):
        return any((end > first or begin == end == first) and begin < last for first, last in spans)

    return [int(is_answer(begin, end)) for begin, end in offsets]


def prompt_of(fast, chat):
    prompt = fast.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return {"messages": chat, "prompt": prompt, "prompt_ids": fast(prompt, add_special_tokens=False)["input_ids"]}


def golden_of(fast, chat, end):
    def render(messages, prompt):
        return fast.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)

    def encode(text):
        return fast(text, add_special_tokens=False, return_offsets_mapping=True)

    golden = {"messages": chat} if chat[-1]["role"] == "assistant" else prompt_of(fast, chat)
    answers = [index for index, message in enumerate(chat) if message["role"] == "assistant"]
    if answers:
        text = render(chat, False)
        encoded = encode(text)
        spans = [span_of_answer(render, chat, index, text, end) for index in answers]
        mask = mask_of(encoded["offset_mapping"], spans)
        golden.update(text=text, ids=encoded["input_ids"], mask="".join(map(str, mask)))
    return golden


def family_of(name):
    form, template, kind, special, added, begin, end, chats = FAMILIES[name]
    tokenizer = make_tokenizer(kind, special, added)
    config = {"chat_template": TEMPLATES[template], "eos_token": end, "tokenizer_class": "PreTrainedTokenizerFast"}
    if begin:
        config["bos_token"] = begin
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=begin, eos_token=end)
    fast.chat_template = TEMPLATES[template]
    # Of V3, the template drops the system's message where the chat ends with an answer: a whole chat then is not golden.
    drops_system = name.startswith("mistral-v3")
    cases = {}
    for case in chats:
        chat = {**CHATS, **MORE}[case]
        if drops_system and chat[0]["role"] == "system":
            if chat[-1]["role"] == "user":
                cases[case] = prompt_of(fast, chat)
            continue
        cases[case] = golden_of(fast, chat, end)
    return {"format": form, "tokenizer": json.loads(tokenizer.to_str()), "config": config, "cases": cases}


def main():
    golden = {name: family_of(name) for name in FAMILIES}
    (HERE / "chat.json").write_text(json.dumps(golden, indent=None, separators=(",", ":")) + "\n")
    print({name: len(family["cases"]) for name, family in golden.items()})


if __name__ == "__main__":
    main()
