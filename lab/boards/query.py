#!/usr/bin/env python3
"""Executes every query of the job's board on a real Prometheus that scraped a real `lockstep run`.

The run has 2, 1 and 3 workers; one is killed. Each query must have values, finite and within the range of
its unit; those of metrics that only the operator has are listed and left out. The answers go to
target/boards/job.json, from which draw.sh draws. It needs `cargo build --release --workspace` and Debian's
package prometheus, and takes two minutes.
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKSTEP = ROOT / "target/release/lockstep"
BOARD = ROOT / "charts/lockstep/files/dashboards/job.json"
ADDRESS = "127.0.0.1:19190"
JOB = """
apiVersion: lockstep.dev/v1alpha1
kind: TrainingJob
metadata: {name: lenet}
spec:
  replicas: 2
  elastic: {minReplicas: 1, maxReplicas: 3}
  model: {name: lenet5}
  dataset: {format: glyphs, samples: 10000, evaluationFraction: 0.1}
  training: {epochs: 2000, schedule: {baseLearningRate: 0.0005}}
  communication: {backend: tcp}
  checkpoint: {uri: "file:///checkpoints", intervalSeconds: 5}
"""
PROMETHEUS = """
global: {scrape_interval: 1s}
scrape_configs:
  - {job_name: pods, file_sd_configs: [{files: [targets.json], refresh_interval: 1s}]}
"""
VARIABLES = {"$__rate_interval": "10s", "$__interval": "1s", "$__range": "60s", "$namespace": "local", "$job": "lenet"}
# A local run has no reasons of restarts, no phases and no wishes.
OF_THE_OPERATOR = ("lockstep_worker_restarts_total", "lockstep_workers", "lockstep_status_phase")
# Seconds between two changes of the group.
PHASE = 15
# A baseline is measured while other programs may take turns on the cores.
RANGES = {"percentunit": (0, 1.01), "s": (-1, 1e6)}
RANGE_OF_SCALING = (0, 2)


def scrape(run, folder):
    """Names the processes that the run has now; their names stand for those of pods."""
    targets = []
    for log in sorted((run / "logs").glob("*.log")):
        addresses = re.findall(r"metrics=(\S+)", log.read_text())
        if addresses:
            targets.append({"targets": [addresses[-1]], "labels": {"pod": f"lenet-{log.stem}"}})
    (folder / "next").write_text(json.dumps(targets))
    (folder / "next").rename(folder / "targets.json")


def train(seconds, process, run, folder):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            sys.exit(f"the run ended with {process.returncode}:\n{(folder / 'said').read_text()[-2000:]}")
        scrape(run, folder)
        time.sleep(0.5)


def scale(run, workers):
    subprocess.run([LOCKSTEP, "scale", run, str(workers)], check=True, stdout=subprocess.DEVNULL)


def a_worker(process):
    """Returns a child whose command line ends with the word worker."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if Path(f"/proc/{child}/cmdline").read_bytes().rstrip(b"\0").endswith(b"worker"):
            return int(child)
    sys.exit("the run has no worker")


def series(query, start, end):
    words = urllib.parse.urlencode({"query": query, "start": start, "end": end, "step": 1})
    with urllib.request.urlopen(f"http://{ADDRESS}/api/v1/query_range?{words}") as answer:
        return json.load(answer)["data"]["result"]


def check(panel, target, start, end):
    """Returns the answer of one query, and what is wrong with it."""
    query = target["expr"]
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    found = series(query, start, end)
    # A quantile of no observations is no number: Grafana draws a gap.
    values = [value for one in found for _, text in one["values"] if not math.isnan(value := float(text))]
    title, legend = panel["title"], target["legendFormat"]
    answer = {"panel": title, "legend": legend, "series": found}
    if not values:
        print(f"{title:34} {legend:14}  no values")
        return answer, f"{title}: no values: {query}"
    low, high = RANGES.get(panel["fieldConfig"]["defaults"]["unit"], (0, sys.float_info.max))
    if legend == "scaling":
        low, high = RANGE_OF_SCALING
    print(f"{title:34} {legend:14} {len(found):2} series, {min(values):.5g} to {max(values):.5g}")
    sound = low <= min(values) and max(values) <= high
    return answer, None if sound else f"{title}: {min(values)} to {max(values)} is beyond {low} to {high}: {query}"


def main():
    board = json.loads(BOARD.read_text())
    answers, wrong, left_out = [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = folder / "run"
        (folder / "job.yaml").write_text(JOB)
        (folder / "prometheus.yml").write_text(PROMETHEUS)
        (folder / "targets.json").write_text("[]")
        said, start = (folder / "said").open("w"), time.time()
        words = [LOCKSTEP, "run", folder / "job.yaml", "--output", run]
        process = subprocess.Popen(words, stdout=said, stderr=said)
        words = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={ADDRESS}"]
        prometheus = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            train(PHASE, process, run, folder)
            scale(run, 1)
            train(PHASE, process, run, folder)
            scale(run, 3)
            train(PHASE, process, run, folder)
            os.kill(a_worker(process), signal.SIGKILL)
            train(2 * PHASE, process, run, folder)
            end = time.time()
            for panel in board["panels"]:
                for target in panel.get("targets", []):
                    if any(metric in target["expr"] for metric in OF_THE_OPERATOR):
                        left_out.append(f"{panel['title']} ({target['legendFormat']})")
                        continue
                    answer, problem = check(panel, target, start, end)
                    answers.append(answer)
                    wrong += [problem] if problem else []
        finally:
            process.send_signal(signal.SIGINT)
            prometheus.terminate()
            process.wait()
            prometheus.wait()
    print(f"only in a cluster: {', '.join(left_out)}")
    out = ROOT / "target/boards/job.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(answers))
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
