#!/bin/bash
# Process 1 of a node: mounts, containerd, kube-proxy and the kubelet, which is started again whenever it ends unless
# $FOLDER/no-kubelet exists. The harness sets the environment; nothing of the node outlives this process.
set -u
hostname "$NODE"
mount -t proc proc /proc
mount --make-rshared /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netns /run/containerd /run/lock
for pair in /var/lib/kubelet:kubelet /var/lib/containerd:containerd /var/log/pods:pods /var/log/containers:containers /etc/cni/net.d:cni; do
  mkdir -p "${pair%%:*}" "$FOLDER/${pair##*:}"
  mount --bind "$FOLDER/${pair##*:}" "${pair%%:*}"
  mount --make-shared "${pair%%:*}"
done
mount --bind "$FOLDER/etc/resolv.conf" "$(readlink -f /etc/resolv.conf)"

containerd -c "$FOLDER/etc/containerd.toml" >>"$FOLDER/log/containerd.log" 2>&1 &
for _ in $(seq 100); do ctr version >/dev/null 2>&1 && break; sleep 0.1; done
for image in "$IMAGES"/*.tar; do
  [ -e "$image" ] && ctr -n k8s.io images import "$image" >>"$FOLDER/log/images.log" 2>&1
done

kubelet() {
  "$BIN/kubelet" --config="$FOLDER/etc/kubelet.yaml" --kubeconfig="$FOLDER/etc/kubelet.kubeconfig" --hostname-override="$NODE" \
    --node-ip="$ADDRESS" --root-dir=/var/lib/kubelet --v=1 >>"$FOLDER/log/kubelet.log" 2>&1 &
  KUBELET=$!
  echo "$KUBELET" >"$FOLDER/kubelet.pid"
}
"$BIN/kube-proxy" --config="$FOLDER/etc/kube-proxy.yaml" >>"$FOLDER/log/kube-proxy.log" 2>&1 &
kubelet
while :; do
  sleep 1
  kill -0 "$KUBELET" 2>/dev/null || [ -e "$FOLDER/no-kubelet" ] || kubelet
done
