#!/bin/sh
# Creates tonight's RayJob, named by UTC date and owned by this job, through the Kubernetes API: submit.sh rayjob.yaml
# Exit code 0: created, or exists already; 1: failed, with the API's answer on standard error. Runs in the pod of cronjob.yaml.
set -eu

template=$1
api=${KUBERNETES_API:-https://kubernetes.default.svc}
account=${SERVICE_ACCOUNT:-/var/run/secrets/kubernetes.io/serviceaccount}
name=sweep-nightly-$(date -u +%Y%m%d)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sed "s|^  name: sweep-nightly\$|  name: $name\\
  ownerReferences: [{apiVersion: batch/v1, kind: Job, name: $JOB_NAME, uid: $JOB_UID}]|" "$template" > "$work/job.yaml"
if ! grep -q "^  name: $name\$" "$work/job.yaml"; then
    echo "$template: no line '  name: sweep-nightly' to give the date to" >&2
    exit 1
fi

# Pass the token on standard input: other users can read a command line
code=$(printf 'header = "Authorization: Bearer %s"\n' "$(cat "$account/token")" | curl --config - \
    --silent --show-error --max-time 60 --retry 3 --cacert "$account/ca.crt" \
    --header 'Content-Type: application/yaml' --data-binary "@$work/job.yaml" \
    --output "$work/answer" --write-out '%{http_code}' \
    "$api/apis/ray.io/v1/namespaces/$(cat "$account/namespace")/rayjobs?fieldValidation=Strict")

case $code in
201) echo "RayJob $name created" ;;
409) echo "RayJob $name is there already" ;;
*)
    echo "RayJob $name not created, the API answers $code:" >&2
    cat "$work/answer" >&2
    exit 1
    ;;
esac
