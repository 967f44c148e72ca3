"""Small programs drawn once as a tree and written in Python, JavaScript or C."""

from dataclasses import dataclass

from tools.embedded.dice import Dice
from tools.embedded.lexicon import words

NOUNS = words(
    "item,count,total,price,score,index,limit,width,height,offset,weight,speed,level,budget,amount,"
    "distance,step,depth,balance,rate,size,delay,energy,volume,order,queue,tally,rest,bonus,"
    "threshold,capacity,margin"
)
ADJECTIVES = words("max,min,next,last,current,base,old,new,first,best,raw,net,local")
VERBS = words(
    "compute,update,find,scale,merge,count,clamp,adjust,collect,reduce,measure,apply,"
    "estimate,balance,split,check"
)


def variable(dice: Dice) -> str:
    """A snake_case name of one or two words."""
    noun = dice.pick(NOUNS)
    return f"{dice.pick(ADJECTIVES)}_{noun}" if dice.chance(0.4) else noun


def camel(name: str) -> str:
    """The snake_case name in camelCase."""
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


@dataclass(frozen=True)
class Language:
    """How one language writes the constructs that the programs use."""

    name: str
    comment: str
    define: str
    parameter: str
    declare: str
    condition: str
    loop: str
    end: str
    both: str

    @property
    def semicolon(self) -> str:
        """What ends a statement."""
        return ";" if self.end else ""

    def spelled(self, name: str) -> str:
        """The snake_case name as the language's habit has it."""
        return camel(name) if self.name == "javascript" else name


PYTHON = Language(
    name="python",
    comment="#",
    define="def {f}({a}):",
    parameter="{p}",
    declare="{v} = {e}",
    condition="if {e}:",
    loop="for {v} in range({e}):",
    end="",
    both="and",
)
JAVASCRIPT = Language(
    name="javascript",
    comment="//",
    define="function {f}({a}) {{",
    parameter="{p}",
    declare="let {v} = {e}",
    condition="if ({e}) {{",
    loop="for (let {v} = 0; {v} < {e}; {v}++) {{",
    end="}",
    both="&&",
)
C = Language(
    name="c",
    comment="//",
    define="int {f}({a}) {{",
    parameter="int {p}",
    declare="int {v} = {e}",
    condition="if ({e}) {{",
    loop="for (int {v} = 0; {v} < {e}; {v}++) {{",
    end="}",
    both="&&",
)


class Writer:
    """Writes one function with variables that are defined before they are used."""

    def __init__(self, dice: Dice, language: Language) -> None:
        self.dice, self.language = dice, language
        self.lines: list[str] = []
        self.depth = 0
        self.loops = 0

    def _line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text if text else "")

    def _statement(self, text: str) -> None:
        self._line(text + self.language.semicolon)

    def _name(self, taken: list[str]) -> str:
        while True:
            name = self.language.spelled(variable(self.dice))
            if name not in taken:
                return name

    def _atom(self, scope: list[str]) -> str:
        return self.dice.pick(scope) if self.dice.chance(0.75) else str(self.dice.integer(0, 20))

    def _expression(self, scope: list[str]) -> str:
        left = self.dice.pick(scope)
        if self.dice.chance(0.3):
            return left
        right = f"{left} {self.dice.pick('+-*')} {self._atom(scope)}"
        return f"({right}) * {self._atom(scope)}" if self.dice.chance(0.2) else right

    def _test(self, scope: list[str]) -> str:
        left, sign = self.dice.pick(scope), self.dice.pick(("<", ">", "<=", ">="))
        compare = f"{left} {sign} {self._atom(scope)}"
        if self.dice.chance(0.2):
            return f"{compare} {self.language.both} {self.dice.pick(scope)} > 0"
        return compare

    def _opened(self, head: str, scope: list[str], statements: int) -> None:
        self._line(head)
        self.depth += 1
        self._body(list(scope), statements)
        self.depth -= 1

    def _branch(self, scope: list[str]) -> None:
        head = self.language.condition.format(e=self._test(scope))
        self._opened(head, scope, self.dice.integer(1, 2))
        if self.dice.chance(0.4):
            self._opened("} else {" if self.language.end else "else:", scope, 1)
        if self.language.end:
            self._line(self.language.end)

    def _loop(self, scope: list[str]) -> None:
        index = "ijk"[self.loops % 3]
        self.loops += 1
        head = self.language.loop.format(v=index, e=self.dice.pick(scope))
        self._opened(head, [*scope, index], self.dice.integer(1, 2))
        if self.language.end:
            self._line(self.language.end)
        self.loops -= 1

    def _body(self, scope: list[str], statements: int) -> None:
        for _ in range(statements):
            kind = self.dice.integer(0, 9)
            if kind <= 3:
                new = self._name(scope)
                self._statement(self.language.declare.format(v=new, e=self._expression(scope)))
                scope.append(new)
            elif kind <= 6 or self.depth > 2:
                changed = [v for v in scope if len(v) > 1]
                operation = self.dice.pick(("+=", "-=", "+=", "*="))
                self._statement(f"{self.dice.pick(changed)} {operation} {self._atom(scope)}")
            elif kind <= 8:
                self._branch(scope)
            else:
                self._loop(scope)

    def function(self) -> tuple[str, list[str]]:
        """The function's name and its parameters; its text is in `lines`."""
        verb = self.dice.pick(VERBS)
        name = self.language.spelled(f"{verb}_{variable(self.dice)}")
        parameters: list[str] = []
        for _ in range(self.dice.integer(1, 3)):
            parameters.append(self._name([*parameters, name]))
        declared = ", ".join(self.language.parameter.format(p=p) for p in parameters)
        self._line(self.language.define.format(f=name, a=declared))
        self.depth = 1
        result = self._name([*parameters, name])
        self._statement(self.language.declare.format(v=result, e=self._expression(parameters)))
        self._body([*parameters, result], self.dice.integer(1, 5))
        self._statement(f"return {result}")
        self.depth = 0
        if self.language.end:
            self._line(self.language.end)
        return name, parameters


def _calls(dice: Dice, language: Language, functions: list[tuple[str, list[str]]]) -> list[str]:
    prints = {
        "python": "print({c})",
        "javascript": "console.log({c});",
        "c": '    printf("%d\\n", {c});',
    }
    lines = []
    for name, parameters in functions:
        arguments = ", ".join(str(dice.integer(0, 50)) for _ in parameters)
        lines.append(prints[language.name].format(c=f"{name}({arguments})"))
    if language.name == "python":
        return ['if __name__ == "__main__":', *("    " + line for line in lines)]
    if language.name == "c":
        return ["int main(void) {", *lines, "    return 0;", "}"]
    return lines


def program(dice: Dice, language: Language) -> str:
    """A program of one to three functions and their calls in the given language."""
    chunks = ["#include <stdio.h>"] if language.name == "c" else []
    functions: list[tuple[str, list[str]]] = []
    for _ in range(dice.integer(1, 3)):
        writer = Writer(dice, language)
        function = writer.function()
        if function[0] in [name for name, _ in functions]:
            continue
        functions.append(function)
        if dice.chance(0.3):
            about = function[0].replace("_", " ")
            writer.lines.insert(0, f"{language.comment} {about}: takes {', '.join(function[1])}")
        chunks.append("\n".join(writer.lines))
    if dice.chance(0.7) or language.name == "c":
        chunks.append("\n".join(_calls(dice, language, functions)))
    return ("\n\n\n" if language.name == "python" else "\n\n").join(chunks)
