#!/bin/bash
# Measure this server on this machine: server, proxy and client side by side, over HTTP, WebSocket and gRPC.
#
#   docs/benchmarks/measure.sh MODEL OUT [PROFILE ...]       from the project's root; PROFILE: ttfa balanced throughput
#
# Writes OUT/PROFILE_http.json, _http_streaming_layout.json (text token by token), _ws.json, _grpc.json and
# PROFILE_serve.log; `bench-report` makes tables and plots of them.
# Variables: SECONDS_EACH (20) and WARMUP (5) at each rate; HTTP_RATES, LAYOUT_RATES, WS_RATES, GRPC_RATES; CARD and COMMIT
# go into the results; PYTHON (python3) is the one that has our packages.
set -euo pipefail
model=$1 out=$2
shift 2
mkdir -p "$out"
python=${PYTHON:-python3}
card=${CARD:-$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || echo none)}
commit=${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}

measure() { # profile, way (its name may go on after _), rates...; MORE: further options
  local profile=$1 way=$2
  shift 2
  [ $# -gt 0 ] || return 0
  "$python" -m proxy bench --over "${way%%_*}" --url "$url" --triton "$triton" --rate "$@" \
    --seconds "${SECONDS_EACH:-20}" --warmup "${WARMUP:-5}" --label "$profile ${way//_/ }" \
    --note "card=$card" --note "commit=$commit" --note "profile=$profile" --note "model=$model" \
    ${MORE:-} --no-plot -o "$out/${profile}_$way"
  rm "$out/${profile}_$way.md"
}

for profile in "${@:-ttfa}"; do
  ready=$(mktemp -u)
  "$python" -m proxy serve --model "$model" --profile "$profile" --port 0 --triton-ports auto --announce "$ready" \
    >"$out/${profile}_serve.log" 2>&1 &
  server=$!
  trap 'kill "$server" 2>/dev/null' EXIT
  until [ -e "$ready" ]; do
    kill -0 "$server" 2>/dev/null || { tail -20 "$out/${profile}_serve.log"; exit 1; }
    sleep 0.5
  done
  url=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["url"])' "$ready")
  triton=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["triton_grpc"])' "$ready")
  rm "$ready"
  # shellcheck disable=SC2086  # lists of rates
  {
    measure "$profile" http ${HTTP_RATES-1 4 10 20 60 120}
    MORE="--field non_streaming_mode=false" measure "$profile" http_streaming_layout ${LAYOUT_RATES-1 10 20}
    measure "$profile" ws ${WS_RATES-1 10 20}
    measure "$profile" grpc ${GRPC_RATES-1 10 60}
  }
  kill "$server"
  wait "$server" || true
  trap - EXIT
done
