"""One real `LLM(...)` in this process, watched by `auxconn.attach`; prints what it saw as JSON.

A script and not a fixture: vLLM reads its environment once, and two engines in one process
would share more than they should. Argument: KV blocks of the host tier, 0 for none.
"""

import json
import os
import sys
import zlib

from auxconn.engine.config import EngineConfig
from auxconn.engine.serving import variables

README_LINE = "auxconn engine --load --collector tcp://127.0.0.1:5599"
"""How the README starts a real engine; `test_real_engine` runs it, with another address."""

CONFIG = EngineConfig(num_blocks=18, max_num_seqs=8, kv_load_blocks=2)
WORKLOAD = {
    "prompts": 5, "samples": 2, "system_tokens": 32, "prompt_tokens": 190,
    "output_tokens": 8, "requests": 20, "concurrency": 1,
}  # fmt: skip


def main(tier: int) -> None:
    # Two connectors and the tier: none of them may change what is said.
    config = CONFIG.replace(
        kv_tier_blocks=tier, connector="auxconn" if tier else "vllm"
    )
    os.environ.update(variables(config, "", "inside", dict(os.environ)))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    from auxconn import FrameStore, attach
    from auxconn.engine.load import digest, tokens_of
    from auxconn.engine.model import model_folder
    from auxconn.engine.serving import engine_arguments
    from auxconn.lab import workloads

    llm = LLM(
        model=str(model_folder(config)),
        disable_log_stats=True,
        **engine_arguments(config),
    )
    core = llm.llm_engine.engine_core.engine_core
    store = FrameStore()
    attachment = attach(
        scheduler=core.scheduler,
        worker=core.model_executor.driver_worker.worker.model_runner,
        to=store,
        engine="inside",
    )
    answers = {}

    def ask(requests):
        seen = len(store.rows())
        outputs = llm.generate(
            [
                TokensPrompt(prompt_token_ids=tokens_of(r.prompt).tolist())
                for r in requests
            ],
            [
                SamplingParams(
                    temperature=1.0,
                    seed=zlib.crc32(r.id.encode()),
                    max_tokens=r.max_tokens,
                    ignore_eos=True,
                )
                for r in requests
            ],
            use_tqdm=False,
        )
        rows = store.rows().iloc[seen:]
        for request, output in zip(requests, outputs, strict=True):
            got = output.outputs[0]
            answers.setdefault(request.id, []).append(
                {
                    "request": output.request_id,
                    "tokens": list(got.token_ids),
                    "rows": list(got.routed_experts.shape),
                    "rows_sha256": digest(got.routed_experts),
                    "step_rows": int(rows.step_rows.sum()),
                    "store_rows": int(rows.store_rows.sum()),
                    "tail_rows": int(rows.tail_rows.sum()),
                    "captured_rows": int(rows.captured_rows.sum()),
                }
            )
        return rows

    requests = list(workloads.grpo(**WORKLOAD))
    for request in requests:
        ask([request])
    alone = len(store.requests())
    together = ask(requests)
    lookups = store.lookups()
    ended = store.requests()
    steps = store.steps()
    blocks = store.blocks()
    found = {
        "answers": answers,
        "together_rows": int(
            together.step_rows.sum()
            + together.store_rows.sum()
            + together.tail_rows.sum()
        ),
        "ended": [
            [str(row.request), int(row.prompt_tokens), int(row.output_tokens),
             int(row.local_hit), int(row.external_hit), int(row.loads)]
            for row in ended.itertuples()
        ],
        "alone": alone,
        "loading_blocks": int(steps.loading_blocks.max()),
        "accepted": int(lookups.external_accepted.sum()),
        "offered": int(lookups.external_offered.sum()),
        "events": blocks.event.astype(str).value_counts().to_dict(),
        "problems": store.events().query("kind == 'error'").text.tolist(),
        "facts": attachment.facts,
    }  # fmt: skip
    attachment.detach()
    print("RESULT " + json.dumps(found, default=str), flush=True)
    # Taking an engine down takes longer than all this.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
