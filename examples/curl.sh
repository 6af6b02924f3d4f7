#!/usr/bin/env bash
# Ask a running server with curl: which model it serves, then one question, whole and streamed.
#   BASE_URL=http://127.0.0.1:8000/v1 MODEL=SmolLM2-135M-Instruct examples/curl.sh
set -euo pipefail

base_url=${BASE_URL:-http://127.0.0.1:8000/v1}
model=${MODEL:-SmolLM2-135M-Instruct}

ask() {
    curl --fail-with-body --silent --show-error --no-buffer "$base_url/chat/completions" \
        --header 'Content-Type: application/json' --data @- <<JSON
{
  "model": "$model",
  "messages": [{"role": "user", "content": "What is the capital of France?"}],
  "max_tokens": 32,
  "temperature": 0,
  "stream": $1
}
JSON
    echo
}

curl --fail-with-body --silent --show-error "$base_url/models"
echo
ask false
ask true
