package org.redisstate.core.ids

import java.nio.charset.StandardCharsets.UTF_8
import java.security.MessageDigest
import java.util.HexFormat

/** Names that stand for texts of users. */
object Sha256 {

  /** 64 lower-case hexadecimal digits. */
  def of(text: String): String =
    HexFormat.of.formatHex(MessageDigest.getInstance("SHA-256").digest(text.getBytes(UTF_8)))

  /** The first 16 of them. */
  def first16(text: String): String = of(text).substring(0, 16)
}
