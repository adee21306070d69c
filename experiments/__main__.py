"""`python -m experiments`: data, measurements and models for studies, each a command."""

from __future__ import annotations

import typer

from experiments.citations import citations
from experiments.corpus.filtering import filter_corpus
from experiments.corpus.preparing import prepare_data
from experiments.corpus.vocabulary import vocabulary
from experiments.cost import cost
from experiments.device_quality import device_quality
from experiments.follow_ups import follow_ups
from experiments.languages import languages
from experiments.long_conversation import long_conversation
from experiments.mean_adapter import mean_adapter
from experiments.paper.tables import paper_tables
from experiments.pretraining import two_stages
from experiments.professional import professional
from experiments.quality import quality
from experiments.questions.countries import draw_questions, invent_countries
from experiments.questions.paragraphs import split_questions
from experiments.questions.prose import prose_questions
from experiments.random_base import random_base
from experiments.refusals import refusal_curve
from experiments.usage import usage
from experiments.verdicts import verdicts
from memory3.printable import Commands

app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
for study in (
    prepare_data,
    draw_questions,
    invent_countries,
    split_questions,
    prose_questions,
    quality,
    device_quality,
    mean_adapter,
    random_base,
    long_conversation,
    languages,
    two_stages,
    filter_corpus,
    vocabulary,
    professional,
    paper_tables,
    refusal_curve,
    cost,
    citations,
    follow_ups,
    usage,
    verdicts,
):
    app.command()(study)


if __name__ == "__main__":
    app()
