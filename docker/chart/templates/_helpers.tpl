{{- define "redis-state.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "redis-state.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Labels that choose the pods of a role. Arguments: root, role. */ -}}
{{- define "redis-state.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "redis-state.labels" -}}
{{ include "redis-state.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "redis-state.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "redis-state.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* Connection arguments of a command. Arguments: root, user. */ -}}
{{- define "redis-state.connection" -}}
- --url={{ required "redis.url is needed, such as redis://redis:6379/0" .root.Values.redis.url }}
{{- with .root.Values.redis.keyPrefix }}
- --key-prefix={{ . }}
{{- end }}
{{- with .user.username }}
- --username={{ . }}
{{- end }}
{{- if .user.secret }}
- --password-file=/run/secrets/redis-state/password
{{- end }}
{{- if .root.Values.redis.tls.secret }}
- --tls-ca-file=/run/secrets/redis-state/ca
{{- end }}
{{- if .root.Values.redis.signing.secret }}
- --signing-key-file=/run/secrets/redis-state/signing
{{- end }}
{{- end }}

{{- /* Secrets of a role in one folder, and a folder for what it writes. Arguments: root, user,
       files: a list of {secret, key, path}. */ -}}
{{- define "redis-state.volumes" -}}
{{- $redis := .root.Values.redis }}
{{- $files := concat (list
    (dict "secret" .user.secret "key" .user.key "path" "password")
    (dict "secret" $redis.tls.secret "key" $redis.tls.key "path" "ca")
    (dict "secret" $redis.signing.secret "key" $redis.signing.key "path" "signing")) .files }}
- name: tmp
  emptyDir:
    medium: Memory
    sizeLimit: 16Mi
- name: secrets
{{- $named := list }}
{{- range $files }}{{ if .secret }}{{ $named = append $named . }}{{ end }}{{ end }}
{{- if $named }}
  projected:
    defaultMode: 0440
    sources:
      {{- range $named }}
      - secret:
          name: {{ .secret }}
          items:
            - key: {{ .key | quote }}
              path: {{ .path }}
      {{- end }}
{{- else }}
  emptyDir: {}
{{- end }}
{{- end }}

{{- define "redis-state.mounts" -}}
- name: tmp
  mountPath: /tmp
- name: secrets
  mountPath: /run/secrets/redis-state
  readOnly: true
{{- end }}

{{- define "redis-state.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* A deployment of one role. Arguments: root, role, user, replicas, files, resources, grace,
       arguments, ports and probes as YAML; env, volumes, mounts and account may be left out. */ -}}
{{- define "redis-state.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "redis-state.name" .root }}-{{ .role }}
  labels:
    {{- include "redis-state.labels" . | nindent 4 }}
spec:
  replicas: {{ .replicas }}
  selector:
    matchLabels:
      {{- include "redis-state.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "redis-state.labels" . | nindent 8 }}
        {{- with .root.Values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .root.Values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ .grace }}
      {{- with .account }}
      serviceAccountName: {{ . }}
      {{- end }}
      securityContext:
        {{- include "redis-state.podSecurity" .root | nindent 8 }}
      {{- include "redis-state.placement" .root | nindent 6 }}
      containers:
        - name: {{ .role }}
          image: {{ include "redis-state.image" .root | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args:
            - {{ .role }}
            {{- .arguments | nindent 12 }}
            {{- include "redis-state.connection" . | nindent 12 }}
          {{- with .env }}
          env:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with .ports }}
          ports:
            {{- . | nindent 12 }}
          {{- end }}
          {{- .probes | nindent 10 }}
          resources:
            {{- toYaml .resources | nindent 12 }}
          securityContext:
            {{- include "redis-state.containerSecurity" .root | nindent 12 }}
          volumeMounts:
            {{- include "redis-state.mounts" .root | nindent 12 }}
            {{- with .mounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        {{- include "redis-state.volumes" . | nindent 8 }}
        {{- with .volumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end }}

{{- /* A service of one role. Arguments: root, role, port, name. */ -}}
{{- define "redis-state.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "redis-state.name" .root }}-{{ .role }}
  labels:
    {{- include "redis-state.labels" . | nindent 4 }}
spec:
  selector:
    {{- include "redis-state.selector" . | nindent 4 }}
  ports:
    - name: {{ .name }}
      port: {{ .port }}
      targetPort: {{ .name }}
{{- end }}
