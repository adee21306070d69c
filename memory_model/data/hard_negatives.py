"""Conversations with hard negatives: everything that is read resembles the answer, and only the subject differs.

`HardFacts`: most references of a batch hold the requested field, of different documents. `Articles`: paragraphs of one
article, with people's questions about them. An "I don't know." has a twin that one of the same references does answer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from memory3.errors import InvalidInput
from memory3.text.chat import ChatTemplate
from memory3.text.references import title_line
from memory3.text.refusal import SENTENCE
from memory_model.data.conversations import Conversations, Example, FactConversations, Sizes, TrainingReference, Turns
from memory_model.data.factbook import Question, refers_to
from memory_model.data.rows import QuestionRow

_WHOLE = 0.5  # share of the references of facts that are read as they are split
_LEAST_FAMILIES = 12  # documents that hold a topic
_LEAST_PARAGRAPHS = 4  # of an article whose paragraphs are read next to each other
_POOLED = 20  # paragraphs of articles with fewer, which are pooled
_ONE_DOCUMENT = 0.25  # share of the batches with references of one document, where it has several

Unanswered = tuple[list[int], Question]
"""References that are read (indices into the batch), and a question that none answers; its answer is a wrong one."""


class HardNegativeConversations(Conversations):
    """The conversations of both kinds; a subclass draws references and unanswerable questions."""

    refused_share = 0.0

    @abstractmethod
    def unanswered(self, written: Sequence[TrainingReference]) -> Unanswered | None:
        """A question that nothing read answers, if the batch has one."""

    def conversations(self, written: Sequence[TrainingReference]) -> list[Example]:
        """The batch's conversations: refusals with their twins, and questions about what is read."""
        rng = self.random
        rows: list[Example] = []
        while len(rows) < self.sizes.conversations:
            unanswered = self.unanswered(written) if rng.random() < self.refused_share else None
            if unanswered is None:
                candidates = self.candidates(written)
                read = rng.sample(candidates, min(self._reads(), len(candidates)))
                rows.append(self._asking(written, read, rng.randint(1, min(2, len(read)))))
                continue
            read, question = unanswered
            rows.append(self._reading(written, read, [(question.question, SENTENCE)]))
            rows.append(self._asking(written, read, 1))
        return rows[: self.sizes.conversations]

    def candidates(self, written: Sequence[TrainingReference]) -> list[int]:
        """Indices of the references that a conversation may read."""
        return [n for n, reference in enumerate(written) if reference.questions]

    def _reads(self) -> int:
        """How many references a conversation reads: two at first, up to all a chunk has, more batch by batch."""
        most = self.sizes.memories
        if self.drawn < self.sizes.ramp:
            most = min(most, 2 + self.drawn * (most - 1) // self.sizes.ramp)
        return self.random.randint(max(2, most - 1), most)

    def _asking(self, written: Sequence[TrainingReference], read: Sequence[int], turns: int) -> Example:
        sources = self.random.sample([n for n in read if written[n].questions], turns)
        answered = [(question.question, question.answer) for question in (self.ask(written[n]) for n in sources)]
        return self._reading(written, read, answered, written[sources[0]])

    def _reading(
        self,
        written: Sequence[TrainingReference],
        read: Sequence[int],
        turns: Turns,
        source: TrainingReference | None = None,
    ) -> Example:
        """Turns that read the references as memories, or a share of them as text."""
        if self.random.random() < self.sizes.all_as_text:
            return self._as_text(written, read, turns[0])
        return self._row(read, turns, source)


class HardFacts(HardNegativeConversations, FactConversations):
    """Facts of one field of different documents, or of one document; refused questions ask for a removed line."""

    task = "hard"
    on_topic = 1.0

    def __init__(self, references: Sequence[TrainingReference], chat: ChatTemplate, seed: int, sizes: Sizes) -> None:
        """As FactConversations. Raises InvalidInput where no field is held by a dozen documents."""
        super().__init__(references, chat, seed, sizes, _WHOLE)
        if sizes.written < 4:
            raise InvalidInput("task hard needs 4 or more references a batch: raise --references or --conversations")
        self.refused_share = sizes.refused
        self.topics = {t for t in self.topics if len(self._holders(t)) >= _LEAST_FAMILIES}
        if not self.topics:
            raise InvalidInput(f"task hard needs a field that {_LEAST_FAMILIES} documents hold: drop it from --mixture")
        fields = [{ways[0].field for ways in reference.questions} for reference in self.references]
        self.held = {family: set().union(*(fields[n] for n in own)) for family, own in self.families.items()}
        self.absent: dict[tuple[int, ...], Question] = {}

    def draw(self) -> list[TrainingReference]:
        """References that hold the topic, of different documents of a kind; a third of them lack a line.

        Or those of one document, as a search that finds its title returns them: reading many of one subject is then no
        sign that nothing answers.
        """
        rng, size = self.random, self.sizes.written
        while (lead := self._lead()) is None:
            pass
        if len(own := self.families[lead]) > 2 and rng.random() < _ONE_DOCUMENT:
            return self._of_one([self.references[n] for n in rng.sample(own, min(size, len(own)))])
        of_family = self._holders(self.topic)
        same_kind = [f for f in sorted(of_family) if 2 * len(self.held[f] & self.held[lead]) > len(self.held[lead])]
        same_kind = same_kind if len(same_kind) >= size - 1 else sorted(of_family)
        drawn: list[TrainingReference] = []
        self.absent = {}
        for number, family in enumerate(rng.sample(same_kind, min(size - 1, len(same_kind)))):
            holder = self.references[of_family[family]]
            question = rng.choice(rng.choice([w for w in holder.questions if number or w[0].field == self.topic]))
            less = self._without(holder, question, 1 if number else 2) if number < size // 3 else []
            if less:
                self.absent[tuple(range(len(drawn), len(drawn) + len(less)))] = question
            drawn += less or [self._varied(holder)]
        return drawn

    def unanswered(self, written: Sequence[TrainingReference]) -> Unanswered | None:
        """A question for a line that a document lacks, next to others that may hold it; any number is read."""
        if not self.absent:
            return None
        rng = self.random
        lacking, question = rng.choice(list(self.absent.items()))
        others = [n for n in range(len(written)) if n not in lacking and not refers_to(written[n].text, question)]
        read = rng.sample(lacking, rng.randint(1, min(len(lacking), self.sizes.memories)))
        read += rng.sample(others, min(len(others), rng.randint(0, self.sizes.memories - len(read))))
        return rng.sample(read, len(read)), question

    def candidates(self, written: Sequence[TrainingReference]) -> list[int]:
        """Indices of the references that hold the topic, if there is one."""
        held = [{ways[0].field for ways in reference.questions} for reference in written]
        return [n for n, fields in enumerate(held) if self.topic in fields or (fields and not self.topic)]

    def _holders(self, topic: str) -> dict[int, int]:
        """One reference of each document that holds a field."""
        return {self.references[n].family: n for n in self.fields[topic]}

    def _of_one(self, drawn: list[TrainingReference]) -> list[TrainingReference]:
        """References of one document, without the lines of one of their fields."""
        self.topic, self.absent = "", {}
        question = self.random.choice(self.random.choice(drawn[0].questions))
        lacking = [self._less(reference, question) for reference in drawn]
        found = [reference for reference in lacking if reference.questions]
        if found and not any(refers_to(reference.text, question) for reference in found):
            self.absent[tuple(range(len(found)))] = question
        return found or drawn

    def _less(self, reference: TrainingReference, question: Question) -> TrainingReference:
        """A reference without the lines of a field."""
        title, *lines = reference.text.splitlines()
        lines = [line for line in lines if not line.startswith(f"{question.field}: ")]
        text = "\n".join([title, *lines])
        questions = [ways for ways in reference.questions if ways[0].line in lines]
        return TrainingReference(reference.family, text, self.chat.tokenizer.encode(text), questions)

    def _without(self, holder: TrainingReference, question: Question, most: int) -> list[TrainingReference]:
        """References of a document, without the lines of a field; none if they answer nevertheless."""
        found: list[TrainingReference] = []
        numbers = self.families[holder.family]
        for number in self.random.sample(numbers, len(numbers)):
            less = self._less(self.references[number], question)
            if less.questions and len(found) < most:
                found.append(less)
        return [] if any(refers_to(r.text, question) for r in found) else found


class Articles(HardNegativeConversations):
    """People's questions about paragraphs, next to other paragraphs of the same article (`QuestionRow.article`)."""

    task = "articles"

    def __init__(self, rows: Sequence[QuestionRow], chat: ChatTemplate, seed: int, sizes: Sizes) -> None:
        """rows: as `split-questions` writes them. Raises InvalidInput where no article has enough of them."""
        super().__init__(chat, seed, sizes)
        self.refused_share = sizes.refused_articles
        paragraphs: dict[tuple[str, str, str], tuple[list[list[Question]], list[Question]]] = {}
        for row in rows:
            key = row.article or row.title, row.title, row.knowledge
            answers, refused = paragraphs.setdefault(key, ([], []))
            if row.answerable:
                answers.append([Question(row.question, row.right_answer, row.knowledge)])
            else:
                refused.append(Question(row.question, row.plausible, ""))
        self.articles: dict[str, list[tuple[TrainingReference, list[Question]]]] = {}
        for number, ((article, title, text), (answers, refused)) in enumerate(paragraphs.items()):
            headed = title_line(title) + text
            ids = chat.tokenizer.encode(headed)
            if answers and len(ids) <= sizes.longest:
                self.articles.setdefault(article, []).append((TrainingReference(number, headed, ids, answers), refused))
        single = [one for held in self.articles.values() if len(held) < _LEAST_PARAGRAPHS for one in held]
        self.articles = {name: held for name, held in self.articles.items() if len(held) >= _LEAST_PARAGRAPHS}
        for start in range(0, len(single) - _LEAST_PARAGRAPHS + 1, _POOLED):
            self.articles[f"\0{start}"] = single[start : start + _POOLED]
        if not self.articles:
            raise InvalidInput(f"task articles needs {_LEAST_PARAGRAPHS} paragraphs with questions")
        self.refused: list[list[Question]] = []

    def draw(self) -> list[TrainingReference]:
        """Runs of up to five paragraphs of an article."""
        rng, size = self.random, self.sizes.written
        chosen: dict[str, tuple[TrainingReference, list[Question]]] = {}
        for name in rng.sample(sorted(self.articles), min(size, len(self.articles))):
            held = self.articles[name]
            run = min(5, len(held), size - len(chosen))
            start = rng.randrange(len(held) - run + 1)
            chosen |= {reference.text: (reference, refused) for reference, refused in held[start : start + run]}
            if len(chosen) == size:
                break
        self.refused = [refused for _, refused in chosen.values()]
        return [reference for reference, _ in chosen.values()]

    def unanswered(self, written: Sequence[TrainingReference]) -> Unanswered | None:
        """A question about a paragraph that it does not answer although it seems to; the paragraph is read."""
        rng = self.random
        having = [n for n, refused in enumerate(self.refused) if refused]
        if not having:
            return None
        number = rng.choice(having)
        others = rng.sample([n for n in range(len(written)) if n != number], min(4, len(written) - 1))
        read = rng.sample([number, *others], len(others) + 1)
        return read, rng.choice(self.refused[number])
