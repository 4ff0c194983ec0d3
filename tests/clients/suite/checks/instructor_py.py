"""Instructor: typed answers by a forced tool, a JSON schema and JSON mode."""

import instructor
from check import MODEL, PERSON_TEXT, V1, run, step
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def extract(mode):
    client = instructor.from_openai(
        OpenAI(base_url=V1, api_key="none", max_retries=0, timeout=300), mode=mode
    )
    person = client.chat.completions.create(
        model=MODEL,
        response_model=Person,
        max_retries=1,
        temperature=0,
        max_tokens=60,
        messages=[{"role": "user", "content": PERSON_TEXT}],
    )
    assert (person.name, person.age) == ("John", 30), person
    return person


@step
def tools():
    return extract(instructor.Mode.TOOLS)


@step
def json_schema():
    return extract(instructor.Mode.JSON_SCHEMA)


@step
def json_mode():
    return extract(instructor.Mode.JSON)


run()
