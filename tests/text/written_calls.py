"""Replies with calls in every notation."""

from __future__ import annotations

from text_replies import Calls
from tool_notations import CLOCK, PARIS, PARIS_2

SEP, BEGIN, END = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
WRITTEN: list[tuple[str, str, str, Calls]] = [  # notation, reply, its text, its calls
    (
        "hermes",
        'Sure.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        "Sure.",
        [PARIS],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"city": "Paris", "days": 2}, "name": "weather"}</tool_call>\n'
        '<tool_call>\n{"name": "clock"}\n</tool_call>\nDone.',
        "Done.",
        [PARIS_2, CLOCK],
    ),
    ("hermes", '{"name": "weather", "arguments": {"city": "Paris"}}', "", [PARIS]),
    (
        "hermes",
        '```json\n{"name": "weather", "arguments": {"city": "Paris"}}\n```',
        "",
        [PARIS],
    ),
    (
        "hermes",
        '<tool_call>[{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}, {"name": "clock", '
        '"arguments": null}]</tool_call>',
        "",
        [PARIS, CLOCK],
    ),
    (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "a\nb } \\" </tool_call> é", "where": '
        '{"x": [1, {"y": "]"}]}}}</tool_call>',
        "",
        [("weather", {"city": 'a\nb } " </tool_call> é', "where": {"x": [1, {"y": "]"}]}})],
    ),
    (
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "clock", "arguments": {"days": 1}}}',
        "",
        [("clock", {"days": 1})],
    ),
    ("llama-json", '{"name": "weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    (
        "llama-json",
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}; {"name": "clock", '
        '"parameters": {}}',
        "",
        [PARIS, CLOCK],
    ),
    (
        "pythonic",
        "[weather(city='Paris', days=2), clock()]",
        "",
        [PARIS_2, CLOCK],
    ),
    (
        "pythonic",
        '[weather(city="]) \\"x", where={"a": [True, null, -1.5]})]',
        "",
        [("weather", {"city": ']) "x', "where": {"a": [True, None, -1.5]}})],
    ),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}, '
        '{"name": "clock", "arguments": {}}]',
        "",
        [PARIS, CLOCK],
    ),
    (
        "mistral",
        'Well. [TOOL_CALLS]weather[ARGS]{"city": "Paris"}[TOOL_CALLS]clock[CALL_ID]x1[ARGS]{}',
        "Well.",
        [PARIS, CLOCK],
    ),
    ("mistral", '[TOOL_CALLS]weather{"city": "Paris"}', "", [PARIS]),
    (
        "functiongemma",
        "<start_function_call>call:weather{city:<escape>Paris<escape>,days:2}<end_function_call>"
        "<start_function_call>call:clock{}<end_function_call>",
        "",
        [PARIS_2, CLOCK],
    ),
    (
        "gemma4",
        '<|tool_call>call:weather{city:<|"|>a, b}<|"|>,where:{x:[1,<|"|>y<|"|>,true],z:{}}}<tool_call|>',
        "",
        [("weather", {"city": "a, b}", "where": {"x": [1, "y", True], "z": {}}})],
    ),
    (
        "deepseek",
        f"I look.<｜tool▁calls▁begin｜>{BEGIN}function{SEP}weather\n```json\n"
        f'{{"city": "Paris"}}\n```{END}\n{BEGIN}function{SEP}clock\n```json\n{{}}\n```{END}<｜tool▁calls▁end｜>',
        "I look.",
        [PARIS, CLOCK],
    ),
    (
        "deepseek",
        f'<｜tool▁calls▁begin｜>{BEGIN}weather{SEP}{{"city": "Paris"}}{END}<｜tool▁calls▁end｜>',
        "",
        [PARIS],
    ),
    (
        "command",
        'Plan.<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": '
        '{"city": "Paris"}},\n    {"tool_call_id": "1", "tool_name": "clock", "parameters": {}}\n]<|END_ACTION|>',
        "Plan.",
        [PARIS, CLOCK],
    ),
    (
        "granite",
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}]',
        "",
        [PARIS],
    ),
    (
        "xml",
        "Ok.\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=clock>\n</function>\n</tool_call>",
        "Ok.",
        [PARIS_2, CLOCK],
    ),
    (
        "xml",
        "<function=weather><parameter=city>Paris</parameter><parameter=days>2</parameter></function>",
        "",
        [PARIS_2],
    ),
    (
        "xml",
        '<function=weather>\n<parameter=where>\n{"x": "<function=a><parameter=b>c</parameter>d"}\n</parameter>'
        "\n</function>",
        "",
        [("weather", {"where": {"x": "<function=a><parameter=b>c</parameter>d"}})],
    ),
    (
        "xml",
        '<function=weather>\n<parameter=zip>\n007\n</parameter>\n<parameter=where>\n{"x": 1}\n</parameter>'
        "\n<parameter=city>\n two\n\nlines \n</parameter>\n</function>\n</tool_call>",
        "",
        [("weather", {"zip": "007", "where": {"x": 1}, "city": " two\n\nlines "})],
    ),
    ("functionary", '<function=weather>{"city": "Paris"}</function>', "", [PARIS]),
    (
        "key-value",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>"
        "\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>clock</tool_call>",
        "",
        [PARIS_2, CLOCK],
    ),
    (
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.clock:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "",
        [PARIS, CLOCK],
    ),
    (
        "lfm2",
        '<|tool_call_start|>[weather(city="Paris"), clock()]<|tool_call_end|>Checking.',
        "Checking.",
        [PARIS, CLOCK],
    ),
    (
        "invoke",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n<invoke name="clock">\n</invoke>\n</minimax:tool_call>',
        "",
        [PARIS_2, CLOCK],
    ),
    (
        "dsml",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">'
        "Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "",
        [PARIS],
    ),
    (
        "apertus",
        '<|tools_prefix|>[{"weather": {"city": "Paris"}}, {"clock": {}}]<|tools_suffix|>',
        "",
        [PARIS, CLOCK],
    ),
    (
        "mcp",
        "<use_mcp_tool>\n<server_name>s</server_name>\n<tool_name>weather</tool_name>\n<arguments>\n"
        '{"city": "Paris"}\n</arguments>\n</use_mcp_tool>',
        "",
        [PARIS],
    ),
    (
        "gigachat",
        '<|function_call|>{"name": "weather", "arguments": {"city": "Paris"}}',
        "",
        [PARIS],
    ),
]
WRITTEN += [
    ("llama-json", "[weather(city='Paris', days=2), clock()]", "", [PARIS_2, CLOCK]),
    (
        "llama-json",
        '[ {"name": "weather", "parameters": {"city": "Paris"}}, {"name": "clock"}]',
        "",
        [PARIS, CLOCK],
    ),
    (
        "gemma4",
        "<|tool_call>call:weather{where:{a:None,b:[True]}}<tool_call|>",
        "",
        [("weather", {"where": {"a": None, "b": [True]}})],
    ),
    (
        "dsml",
        'Ok.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="clock">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        "Ok.",
        [CLOCK],
    ),
    ("hermes", '<tools>\n{"name": "clock", "arguments": {}}\n</tools>', "", [CLOCK]),
    (
        "lfm2",
        "<|tool_call_start|>[weather(city='Paris', days=2)]<|tool_call_end|>",
        "",
        [PARIS_2],
    ),
    (
        "llama-json",
        '<|python_start|>{"name": "clock", "parameters": {}}<|python_end|>',
        "",
        [CLOCK],
    ),
    (
        "pythonic",
        "<|python_start|>[weather(city='Paris'), clock()]<|python_end|>",
        "",
        [PARIS, CLOCK],
    ),
    (
        "xml",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Paris</parameter>\n<parameter=where>"
        "{'a': True}</parameter>\n</function>\n</seed:tool_call>",
        "",
        [("weather", {"city": "Paris", "where": {"a": True}})],
    ),
    (
        "toolcall",
        'I look.\n<TOOLCALL>[{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "clock", '
        '"arguments": "{}"}]</TOOLCALL>',
        "I look.",
        [PARIS, CLOCK],
    ),
    (
        "tool-calls",
        'So:\n<tool_calls>[{"name": "weather", "arguments": {"city": "Paris"}, "id": "1"}, {"name": '
        '"clock", "arguments": {}}]</tool_calls>',
        "So:",
        [PARIS, CLOCK],
    ),
    (
        "tool-calls",
        '<tool_calls>\n{"name": "weather", "arguments": {"city": "Paris"}}\n{"name": "clock", '
        '"arguments": {}}\n</tool_calls>',
        "",
        [PARIS, CLOCK],
    ),
    (
        "param",
        'Now.\n<function name="weather"><param name="city"><![CDATA[</param>\n& <b>]]></param><param name="days">'
        '2</param></function>\n<function name="clock"></function>',
        "Now.",
        [("weather", {"city": "</param>\n& <b>", "days": 2}), CLOCK],
    ),
    (
        "olmo",
        '<function_calls>weather(city="Paris",\n  days=2)\nclock()</function_calls>',
        "",
        [PARIS_2, CLOCK],
    ),
]
NS = "]<]minimax[>["
WRITTEN += [
    (
        "tencent",
        "I look.<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Paris</arg_value:opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>2</arg_value:opensource>\n"
        "</tool_call:opensource>\n<tool_call:opensource>clock<tool_sep:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>",
        "I look.",
        [PARIS_2, CLOCK],
    ),
    (
        "action",
        'Plan first.\nAction:\n```json\n[\n    {\n        "tool_name": "weather",\n        "parameters": '
        '{"city": "Paris"}\n    },\n    {\n        "tool_name": "clock",\n        "parameters": {}\n    }\n]```\n',
        "Plan first.",
        [PARIS, CLOCK],
    ),
    (
        "action",
        'Action: ```json\n[{"tool_name": "weather", "parameters": {"city": "Paris"}}]\n```',
        "",
        [PARIS],
    ),
    (
        "function-call-role",
        'I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "weather", "arguments": {"city": "Paris"}}',
        "I look.",
        [PARIS],
    ),
    (
        "elements",
        f'Ok.{NS}<tool_call>\n{NS}<invoke name="weather">{NS}<city>Paris{NS}</city>{NS}<days>2{NS}</days>'
        f'{NS}</invoke>\n{NS}<invoke name="clock">{NS}</invoke>\n{NS}</tool_call>',
        "Ok.",
        [PARIS_2, CLOCK],
    ),
    (
        "elements",
        f'{NS}<tool_call>\n{NS}<invoke name="weather">{NS}<city> <b>{{}} \n{NS}</city>{NS}<where>{NS}<at>'
        f"{NS}<item>1{NS}</item>{NS}<item>two{NS}</item>{NS}</at>{NS}<by>{NS}<x>true{NS}</x>{NS}</by>{NS}</where>"
        f"{NS}</invoke>\n{NS}</tool_call>",
        "",
        [("weather", {"city": " <b>{} \n", "where": {"at": [1, "two"], "by": {"x": True}}})],
    ),
]
WRITTEN += [
    (
        "toolcall",
        '<toolcall> {"type": "function", "arguments": {"city": "Paris"}, "name": "weather"} </toolcall>\n'
        '<toolcall> {"name": "clock", "arguments": {}} </toolcall>',
        "",
        [PARIS, CLOCK],
    ),
]
WRITTEN += [  # in sections
    (
        "recipient",
        'all\nI look.>>>weather\n{"city": "Paris"}>>>clock\n{}',
        "I look.",
        [PARIS, CLOCK],
    ),
    (
        "assistant",
        '\nI look.<|assistant|>weather\n{"city": "Paris"}<|assistant|>clock\n{}',
        "I look.",
        [PARIS, CLOCK],
    ),
    ("recipient", 'weather\n{"city": ">>>all"}', "", [("weather", {"city": ">>>all"})]),
    (
        "atem",
        " to=user<|message|>I look.<|eom|><|start|>assistant to=weather<|message|><atem:function_calls>\n"
        '<atem:invoke name="weather">\n<atem:parameter name="city">Paris</atem:parameter>\n<atem:parameter '
        'name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=clock'
        '<|message|><atem:function_calls>\n<atem:invoke name="clock">\n</atem:invoke>\n</atem:function_calls>',
        "I look.",
        [PARIS_2, CLOCK],
    ),
    (
        "typed",
        '<|open|>response<|sep|>I look.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="weather" '
        'index="1"<|sep|><|open|>argument key="zip" type="string"<|sep|>007<|close|>argument<|sep|><|open|>argument '
        'key="days" type="number"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool="clock" '
        'index="2"<|sep|><|open|>json type="object"<|sep|>{"days": 1}<|close|>json<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|><|close|>message<|sep|>",
        "I look.",
        [("weather", {"zip": "007", "days": 2}), ("clock", {"days": 1})],
    ),
    (
        "solar",
        "<|content|>I look.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>"
        'weather<|tool_call:args|>{"city": "Paris"}<|tool_call:end|><|tool_call:begin|>f6<|tool_call:name|>clock'
        "<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        "I look.",
        [PARIS, CLOCK],
    ),
]
