"""`python -m experiments`: data, measurements and models for studies, each a command."""

from __future__ import annotations

import typer

from experiments.answers.citations import citations
from experiments.answers.conversations import conversations
from experiments.answers.device_quality import device_quality
from experiments.answers.languages import languages
from experiments.answers.probe_lean import probe_lean
from experiments.answers.quality import quality
from experiments.answers.refusals import refusal_curve
from experiments.answers.verdicts import verdicts
from experiments.corpus.filtering import filter_corpus
from experiments.corpus.preparing import prepare_data
from experiments.corpus.vocabulary import vocabulary
from experiments.cost import cost
from experiments.follow_ups import follow_ups
from experiments.long_conversation import long_conversation
from experiments.own_state import own_state
from experiments.paper.tables import paper_tables
from experiments.professional import professional
from experiments.questions.countries import draw_questions, invent_countries
from experiments.questions.paragraphs import split_questions
from experiments.questions.prose import prose_questions
from experiments.questions.two_hops import two_hop_questions
from experiments.sections import sections
from experiments.training.mean_adapter import mean_adapter
from experiments.training.pretraining import two_stages
from experiments.training.random_base import random_base
from experiments.usage import usage
from memory3.printable import Commands

app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
for study in (
    prepare_data,
    draw_questions,
    invent_countries,
    split_questions,
    prose_questions,
    two_hop_questions,
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
    conversations,
    probe_lean,
    follow_ups,
    own_state,
    sections,
    usage,
    verdicts,
):
    app.command()(study)


if __name__ == "__main__":
    app()
