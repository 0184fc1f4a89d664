#!/bin/bash
# report.sh: draws docs/report.png, the page of `lockstep report`, in a headless Chromium.
# The run is a real one: two workers, then three, one of which is killed, then one, then two. It takes about
# a minute, and needs `cargo build --release --workspace` and Debian's chromium.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=$PWD/target/release
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat > "$work/job.yaml" <<'JOB'
apiVersion: lockstep.dev/v1alpha1
kind: TrainingJob
metadata: {name: lenet}
spec:
  replicas: 2
  elastic: {minReplicas: 1, maxReplicas: 3}
  model: {name: lenet5}
  dataset: {format: glyphs, samples: 30000, evaluationFraction: 0.1}
  training: {epochs: 2000, globalBatchSize: 512, schedule: {baseLearningRate: 0.0002}}
  communication: {backend: tcp}
  checkpoint: {uri: "file:///checkpoints", intervalSeconds: 10}
JOB
"$bin/lockstep" run "$work/job.yaml" --output "$work/lenet" 2> "$work/said" &
run=$!
sleep 10
"$bin/lockstep" scale "$work/lenet" 3
sleep 10
kill -KILL "$(pgrep -n -P "$run" -f 'worker$')"
sleep 10
"$bin/lockstep" scale "$work/lenet" 1
sleep 10
"$bin/lockstep" scale "$work/lenet" 2
sleep 10
kill -INT "$run"
wait "$run" || [ $? = 130 ] || { tail "$work/said"; exit 1; }
(cd "$work" && "$bin/lockstep" report lenet --output report.html)
# A frame around the page tells its height.
cat > "$work/frame.html" <<'FRAME'
<iframe src="report.html" style="width:1240px;border:0"
  onload="document.title = 'height ' + this.contentDocument.documentElement.scrollHeight"></iframe>
FRAME
shot() { chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --allow-file-access-from-files "$@" 2> "$work/chromium.log"; }
height=$(shot --dump-dom "file://$work/frame.html" | sed -n 's/.*<title>height \([0-9]*\)<.*/\1/p')
shot --window-size="1240,$height" --screenshot="$PWD/docs/report.png" "file://$work/report.html"
echo "docs/report.png, 1240 x $height"
