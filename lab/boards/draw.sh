#!/bin/bash
# draw.sh: draws the boards from target/boards/NAME.json to docs/boards/NAME.png, with Grafana's own
# components in a headless Chromium. This is no Grafana: its components draw the panels.
# The answers come from real jobs on the local cluster:
#   cargo test --release --workspace --test cluster -- every_query
# It first checks each board against src/schema.ts, which has the types of @grafana/schema: it ends
# at an unknown name, or a value that the type does not allow. Unchecked are options of matchers and
# of transformations, links of fields, and queries of variables.
# It then checks that each panel has values, and each annotation a mark.
# It needs npm, curl, and Debian's chromium.
set -euo pipefail
cd "$(dirname "$0")"
root=../..
build=$root/target/boards/page
mkdir -p "$build" "$root/docs/boards"
cp -rp package.json index.html vite.config.mjs src "$build"
cd "$build"
root=../../..
[ node_modules/.package-lock.json -nt package.json ] || npm install --no-audit --no-fund --legacy-peer-deps
boards=charts/lockstep/files/dashboards
rm -rf check
mkdir check
for board in "$root/$boards"/*.json; do
  # The declaration shares the board's first line, so that the compiler's lines are the board's.
  { printf "export const board: import('../src/schema').Board = "; cat "$board"; } > "check/$(basename "$board" .json).ts"
done
node node_modules/typescript/bin/tsc --noEmit --strict --skipLibCheck --allowImportingTsExtensions --target esnext --module esnext \
  --moduleResolution bundler check/*.ts | sed -E "s|^check/(\w+)\.ts\(([0-9]+),([0-9]+)\)|$boards/\1.json:\2:\3|" >&2
node node_modules/vite/bin/vite.js build
page=http://localhost:5199/
node node_modules/vite/bin/vite.js preview --port 5199 --strictPort > preview.log 2>&1 &
server=$!
trap 'kill $server 2> /dev/null || true' EXIT
until curl --silent --fail --output /dev/null "$page"; do
  kill -0 $server || { cat preview.log >&2; exit 1; }
  sleep 0.2
done
browse() { chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=15000 "$@" "$page" 2> chromium.log; }
for answers in "$root"/target/boards/*.json; do
  name=$(basename "$answers" .json)
  cp "$answers" dist/answers.json
  cp "$root/$boards/$name.json" dist/board.json
  height=$(node -e 'const b = JSON.parse(require("fs").readFileSync("dist/board.json")); console.log(Math.max(...b.panels.map(({gridPos: p}) => p.y + p.h)) * 34 + 8)')
  # The page says in its title whether every panel has values, and every annotation a mark.
  browse --window-size=1600,"$height" --dump-dom > drawn.html
  title=$(grep -o '<title>[^<]*' drawn.html | sed -n '1s/<title>//p' || true)
  [ "$title" = DONE ] || { echo "$name: ${title:-the page never ended}" >&2; exit 1; }
  browse --window-size=1600,"$height" --screenshot="$root/docs/boards/$name.png"
  echo "docs/boards/$name.png"
done
