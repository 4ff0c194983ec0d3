"""A text of our own to compare models over, of several kinds: narration, facts, talk, a list, code."""

TEXT = """\
The lighthouse keeper wrote every evening what the sea had brought: a crate of oranges, two letters
in a bottle, and once, after a storm, a small boat with nobody in it. He did not write what he
thought of these things. The oranges he ate. The letters, which were in a language that he could not
read, he dried on the stove and put into the drawer where his mother's letters were. The boat he
painted green, and when summer came he took it out as far as the second buoy and back.

Water is densest at about four degrees Celsius. As a lake cools in autumn, the colder water at its
surface sinks until the whole lake has that temperature; only then can the surface grow colder
still, and freeze. Ice is lighter than the water below it and floats. If it were not so, lakes would
freeze from the bottom, and little would live through the winter.

"How long does the train take?" she asked.
"Three hours, if it is on time."
"And is it?"
"On Sundays. I have been told that the driver has a garden at the other end."

To make bread, mix 500 grams of flour with 350 grams of water, 10 grams of salt and a little yeast.
Leave it for an hour, fold it four times, leave it again overnight in the cold. In the morning shape
it, let it rise until a finger leaves a dent, and bake it at 240 degrees for forty minutes.

def mean(values):
    if not values:
        raise ValueError("the mean of nothing is not defined")
    return sum(values) / len(values)
"""
