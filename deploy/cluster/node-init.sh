# Process 1 of a node, in mount, pid, network, uts and ipc namespaces of its own: nothing of the node outlives it, and nothing
# that it mounts or writes under /run, /var/lib and /var/log is seen outside. The harness sets the environment:
#   NODE, ADDRESS    the node's name and address
#   FOLDER           what is this node's, seen as /run/node
#   COMMON           what all nodes see, as /run/cluster: images, volumes
#   LOGS, PROGRAMS   where logs go and where kubelet and kube-proxy lie
#   NETWORK_PLUGINS  where the bridge plugin lies
set -u
echo "$NODE" >/proc/sys/kernel/hostname
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
for pair in "node:$FOLDER" "cluster:$COMMON" "log:$LOGS" "programs:$PROGRAMS"; do
  mkdir "/run/${pair%%:*}"
  mount --bind "${pair#*:}" "/run/${pair%%:*}"
done
mkdir /run/netns /run/lock
ln -s "$NETWORK_PLUGINS" /run/network-plugins
mount --bind /run/node/lib /var/lib
mount --bind /run/node/pod-log /var/log
resolv=$(readlink -f /etc/resolv.conf)
[ -e "$resolv" ] || { mkdir -p "${resolv%/*}" && : >"$resolv"; }
mount --bind /run/node/resolv.conf "$resolv"
# Containers get their mounts from the kubelet through here.
mount --make-rshared /

containerd --config /run/node/containerd.toml >>"/run/log/$NODE-containerd.log" 2>&1 &
left=300
until ctr version >/dev/null 2>&1; do
  left=$((left - 1))
  [ $left -gt 0 ] || { echo "containerd did not start"; exit 1; }
  sleep 0.1
done
for image in /run/cluster/images/*.tar; do
  mark=/run/node/imported/${image##*/}
  [ "$mark" -nt "$image" ] && continue
  ctr -n k8s.io images import "$image" >>"/run/log/$NODE-images.log" 2>&1 && : >"$mark"
done
until [ -e /run/cluster/api-server-is-up ]; do sleep 0.1; done

/run/programs/kube-proxy --config=/run/node/kube-proxy.json >>"/run/log/$NODE-kube-proxy.log" 2>&1 &

# The kubelet runs unless /run/node/no-kubelet says otherwise, and is started again whenever it ends.
kubelet=
while :; do
  if [ -n "$kubelet" ] && ! kill -0 "$kubelet" 2>/dev/null; then
    wait "$kubelet"
    kubelet=
    rm -f /run/node/kubelet-runs
  fi
  if [ -e /run/node/no-kubelet ]; then
    [ -z "$kubelet" ] || kill "$kubelet"
  elif [ -z "$kubelet" ]; then
    /run/programs/kubelet --config=/run/node/kubelet.json --kubeconfig=/run/node/kubeconfig --root-dir=/var/lib/kubelet \
      --hostname-override="$NODE" --node-ip="$ADDRESS" --v=1 >>"/run/log/$NODE-kubelet.log" 2>&1 &
    kubelet=$!
    : >/run/node/kubelet-runs
  fi
  sleep 0.3
done
